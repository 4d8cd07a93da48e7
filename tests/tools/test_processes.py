"""Each tool once as a process of its own, on a classifier of 40,000 parameters; the other tests call what it calls.

To start one takes seconds, so `make test` starts one, and `make test-all` all.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from mmsoft.datasets.shapes import CLASSES
from mmsoft.utils.config import load_config

ROOT = Path(__file__).parents[2]
CONFIG = f"""
_base_ = 'mmpretrain::resnet/resnet18_8xb32_in1k.py'
arch = dict(embed_dims=[16, 32, 48, 64], num_heads=[1, 2, 3, 4], depths=[1, 1, 1, 1])
model = dict(
    backbone=dict(_delete_=True, type='mmsoft.SOFT', arch=arch, out_indices=(3,)),
    head=dict(in_channels=64, num_classes={len(CLASSES)}))
"""


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope='module')
def folder(tmp_path_factory, small_shapes):
    """A folder to run in: images, a config and random weights."""
    folder = tmp_path_factory.mktemp('project')
    shutil.copytree(small_shapes, folder / 'data/shapes')
    (folder / 'config.py').write_text(CONFIG)
    cfg = load_config(str(folder / 'config.py'))
    init_default_scope('mmpretrain')
    model = MODELS.build(dict(cfg.model, data_preprocessor=cfg.data_preprocessor))
    torch.save(dict(state_dict=model.state_dict()), folder / 'weights.pth')
    return folder


@pytest.mark.parametrize(
    'tool, arguments, file',
    [
        ('train', 'config.py --demo-data --cfg-options train_cfg.max_epochs=1', 'work_dirs/config/epoch_1.pth'),
        slow('test', 'config.py weights.pth --demo-data --out scores.pkl', 'scores.pkl'),
        slow('predict', 'config.py weights.pth data/shapes/images/validation --out-dir seen', 'seen/vis/000001.jpg'),
        slow('visualize', 'config.py weights.pth data/shapes/images/validation --out-dir maps', 'maps/vis/000001.png'),
        slow('export', 'config.py weights.pth --size 32 32 --out model.onnx', 'model.onnx'),
        slow('convert_checkpoint', 'weights.pth weights.safetensors', 'weights.safetensors'),
    ],
)
def test_a_tool_does_its_work(folder, tool, arguments, file):
    environment = dict(os.environ, OMP_NUM_THREADS='1')
    command = [sys.executable, ROOT / f'tools/{tool}.py', *arguments.split()]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == '', 'something is said where nothing is wrong'
    assert (folder / file).stat().st_size > 100
