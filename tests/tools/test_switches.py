"""The hosts' switches: gradient accumulation, several processes and EMA, on a classifier without batch statistics."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmsoft.apis import launch

ROOT = Path(__file__).parents[2]
CONFIG = """
_base_ = 'mmpretrain::resnet/resnet18_8xb32_in1k.py'
model = dict(
    backbone=dict(
        _delete_=True, type='mmsoft.SOFT', arch=dict(embed_dims=[16] * 4, num_heads=[1] * 4, depths=[1] * 4),
        out_type='cls_token', norm_cfg=dict(type='GN', num_groups=4)),
    neck=None,
    head=dict(in_channels=16, topk=1))
train_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(32, 32)),
    dict(type='PackInputs')]))
optim_wrapper = dict(optimizer=dict(lr=0.01))
import os
import torch.distributed

if 'RANK' in os.environ and not torch.distributed.is_initialized():  # set by torchrun
    torch.distributed.init_process_group('gloo')
model_wrapper_cfg = dict(type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False)
"""
# A constant learning rate, because a schedule counts iterations, of which accumulation takes twice as many.
OPTIONS = {'randomness.seed': 1, 'auto_scale_lr.enable': False, 'train_cfg.max_epochs': 1, 'param_scheduler': []}
BATCH = 4


@pytest.fixture(scope='module')
def folder(tmp_path_factory, small_shapes):
    folder = tmp_path_factory.mktemp('project')
    shutil.copytree(small_shapes, folder / 'data/shapes')
    (folder / 'config.py').write_text(CONFIG)
    (folder / 'ema.py').write_text("_base_ = 'config.py'\ncustom_hooks = [dict(type='EMAHook', momentum=0.5)]\n")
    return folder


def train(folder, name, config='config.py', batch_size=BATCH, **options):
    """Trains in this process, and returns the checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = {**OPTIONS, 'train_dataloader.batch_size': batch_size, **options}
        launch.train(config, name, demo_data=True, cfg_options=options)
    return load(folder / name)


def load(work_dir):
    return torch.load(work_dir / 'epoch_1.pth', map_location='cpu', weights_only=False)


def assert_same(found, expected):
    assert max((found[name] - expected[name]).abs().max() for name in expected) < 1e-5


@pytest.fixture(scope='module')
def plain(folder):
    return train(folder, 'plain')


def test_training_changes_the_weights(plain, folder):
    start = train(folder, 'start', **{'optim_wrapper.optimizer.lr': 0.0})
    assert not torch.allclose(start['state_dict']['head.fc.weight'], plain['state_dict']['head.fc.weight'], atol=1e-4)


def test_gradients_of_two_batches_accumulate(plain, folder):
    accumulated = train(folder, 'accumulated', batch_size=BATCH // 2, **{'optim_wrapper.accumulative_counts': 2})
    assert_same(accumulated['state_dict'], plain['state_dict'])


@pytest.mark.slow
def test_two_processes_train_like_one(plain, folder):
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    options = [f'{key}={value}' for key, value in {**OPTIONS, 'train_dataloader.batch_size': BATCH // 2}.items()]
    run = subprocess.run(
        [
            'bash',
            str(ROOT / 'tools/dist_train.sh'),
            'config.py',
            '2',
            '--demo-data',
            '--work-dir=two',
            '--cfg-options',
            *options,
        ],
        cwd=folder,
        env=dict(os.environ, PORT=str(port), PYTHON=sys.executable, OMP_NUM_THREADS='1'),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert_same(load(folder / 'two')['state_dict'], plain['state_dict'])


def test_ema_is_what_is_evaluated(plain, folder):
    """The checkpoint keeps both: ``state_dict`` is the average, ``ema_state_dict`` has the trained weights."""
    averaged = train(folder, 'averaged', 'ema.py')
    trained = {name[len('module.') :]: tensor for name, tensor in averaged['ema_state_dict'].items() if '.' in name}
    assert_same(trained, plain['state_dict'])
    difference = averaged['state_dict']['head.fc.weight'] - plain['state_dict']['head.fc.weight']
    assert difference.abs().max() > 1e-4
