"""Numbers that do not depend on who computes them, in which company, or how often."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from trainings import CONFIGS, ROOT, forget_runs, same

from mmsoft.apis import launch, predict

pytestmark = pytest.mark.usefixtures('inside')


def train(task, work_dir, change='', **options):
    Path('config.py').write_text(CONFIGS[task] + change)
    forget_runs()
    launch.train('config.py', str(work_dir), cfg_options=options)
    checkpoint = torch.load((work_dir / 'last_checkpoint').read_text(), weights_only=False)
    return {key: checkpoint[key] for key in ('state_dict', 'optimizer', 'ema_state_dict') if key in checkpoint}


@pytest.fixture(scope='module')
def trained(folder, tmp_path_factory):
    """A checkpoint of a task, trained a little."""
    made = {}

    def get(task):
        if task not in made:
            work_dir = tmp_path_factory.mktemp(task)
            train(task, work_dir)
            made[task] = (work_dir / 'last_checkpoint').read_text()
        return made[task]

    return get


def results(task, out):
    """Of each picture what was predicted, by its content, which is what its name begins with."""
    if task == 'segmenter':
        return {
            path.name.split('.')[0].split('-')[-1]: np.asarray(Image.open(path))
            for path in (out / 'preds').rglob('*.png')
        }
    return {
        path.name.split('.')[0].split('-')[-1]: json.loads(path.read_text()) for path in (out / 'preds').rglob('*.json')
    }


def differ(one, other):
    """The largest difference of two numbers at the same place; infinite if anything else differs."""
    if isinstance(one, np.ndarray):
        return float(np.abs(one.astype(float) - other).max())
    if isinstance(one, dict):
        return max((differ(one[key], other[key]) for key in one), default=0) if one.keys() == other.keys() else np.inf
    if isinstance(one, list):
        return max(map(differ, one, other), default=0) if len(one) == len(other) else np.inf
    if isinstance(one, str):
        return 0 if one == other else np.inf
    return abs(one - other)


PREDICT = 'from mmsoft.apis import predict\npredict({}, {}, {}, {}, save_pred=True, score_thr=1)'


@pytest.mark.rounds(1, 10)
@pytest.mark.parametrize('task', CONFIGS)
def test_company(trial, full, task, trained, tmp_path):
    """Predictions in another order and by another process: the same to 1e-4."""
    if not full and task != 'detector':
        pytest.skip('in the campaign')
    checkpoint = trained(task)
    Path(f'{task}.py').write_text(CONFIGS[task])
    originals = sorted(Path('data/shapes/images/training').resolve().glob('*.jpg'))
    outs = []
    for name in ('one', 'other'):
        pictures = tmp_path / name
        pictures.mkdir()
        for place, index in enumerate(trial.random.permutation(len(originals))):
            (pictures / f'{place:03d}-{originals[index].name}').symlink_to(originals[index])
        arguments = f'{task}.py', checkpoint, str(pictures), str(tmp_path / f'{name}_out')
        if name == 'other' and full:
            code = PREDICT.format(*map(repr, arguments))
            subprocess.run([sys.executable, '-c', code], check=True, env=dict(os.environ, PYTHONPATH=str(ROOT)))
        else:
            predict(*arguments, save_pred=True, score_thr=1)
        outs.append(results(task, tmp_path / f'{name}_out'))
    assert len(outs[0]) == len(originals)
    worst = differ(*outs)
    trial.note(worst=worst)
    assert worst < 1e-4


@pytest.mark.rounds(1, 5)
@pytest.mark.parametrize('task', CONFIGS)
def test_twice(trial, full, task, tmp_path):
    """Two trainings with one seed, with other numbers of loaders' workers: equal to the bit."""
    if not full:
        pytest.skip('in the campaign; tests/engine/test_loops.py resumes with other numbers of workers')
    seed = int(trial.random.integers(2**31))
    one, other = (
        train(task, tmp_path / str(workers), **{'randomness.seed': seed, 'train_dataloader.num_workers': workers})
        for workers in (0, 2)
    )
    assert same(one, other)


def run_tool(command):
    """Runs a tool, of one process or several, to its end."""
    environment = dict(
        os.environ,
        PYTHONPATH=str(ROOT),
        PYTHON=sys.executable,
        OMP_NUM_THREADS='1',
        PORT=str(20000 + os.getpid() % 20000),
    )
    done = subprocess.run(list(map(str, command)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()[-3000:]


# Left out are batch norm and RetinaNet's loss, which look at their own process alone, and what mixes or drops at random
# in a batch.
SIMPLE = dict(
    detector="""
model['backbone'].update(drop_path_rate=0., norm_eval=True)
model['neck']['norm_cfg'] = dict(type='GN', num_groups=8)
model['bbox_head'] = dict(
    _delete_=True, type='ATSSHead', num_classes=6, in_channels=32, feat_channels=32, stacked_convs=1,
    norm_cfg=dict(type='GN', num_groups=8), loss_cls=dict(type='FocalLoss', use_sigmoid=True),
    loss_bbox=dict(type='GIoULoss'), anchor_generator=dict(
        type='AnchorGenerator', ratios=[1.0], octave_base_scale=2, scales_per_octave=1, strides=[8, 16, 32, 64]))
model['train_cfg'] = dict(
    _delete_=True, assigner=dict(type='ATSSAssigner', topk=9), allowed_border=-1, pos_weight=-1)
train_dataloader['batch_sampler'] = None
""",
    segmenter="""
norm = dict(type='GN', num_groups=8)
model['backbone'].update(drop_path_rate=0., norm_eval=True)
model['decode_head'].update(norm_cfg=norm, dropout_ratio=0.)
train_dataloader['sampler'] = dict(type='InfiniteSampler', shuffle=True)
train_cfg['max_iters'] = 4  # as many as the other tasks, as rounding errors grow
""",
    classifier="""
model['backbone'].update(drop_path_rate=0., norm_eval=True)
model['train_cfg'] = None
train_dataloader['sampler'] = dict(type='DefaultSampler', shuffle=True, _delete_=True)
""",
)
SGD = (
    "optim_wrapper = dict(_delete_=True, type='OptimWrapper', optimizer=dict(type='SGD', lr=0.05))\n"
    'param_scheduler = None\n'
)


@pytest.mark.rounds(0, 3)
@pytest.mark.parametrize('task', CONFIGS)
def test_two_processes(trial, task, tmp_path):
    """Training by two processes and by one with the doubled batch, without batch norm: the same to 1e-4 of a weight.

    For ``make test``, tests/tools/test_switches.py has it.
    """
    text = CONFIGS[task] + SIMPLE[task] + SGD
    Path('config.py').write_text(text)
    seed = int(trial.random.integers(2**31))
    batch = 2
    options = {'randomness.seed': seed, 'train_dataloader.dataset.indices': 8}
    launch.train('config.py', str(tmp_path / 'one'), cfg_options={**options, 'train_dataloader.batch_size': 2 * batch})
    command = [
        ROOT / 'tools/dist_train.sh',
        'config.py',
        '2',
        '--work-dir',
        tmp_path / 'two',
        '--cfg-options',
        *(f'{key}={value}' for key, value in options.items()),
        f'train_dataloader.batch_size={batch}',
    ]
    run_tool(command)
    one, two = (
        torch.load((tmp_path / name / 'last_checkpoint').read_text(), weights_only=False)['state_dict']
        for name in ('one', 'two')
    )
    worst = max(
        ((one[name] - two[name]).abs().max() / one[name].abs().max().clamp(min=1e-3)).item()
        for name in one
        if one[name].is_floating_point()
    )
    trial.note(worst=worst)
    assert worst < 1e-4


def saved(path):
    """What tools/test.py --out has written."""
    if path.is_dir():
        return {one.name: np.asarray(Image.open(one)) for one in path.iterdir()}
    return pickle.loads(path.read_bytes())


@pytest.mark.rounds(0, 2)
@pytest.mark.parametrize('task', CONFIGS)
def test_test_by_two_processes(trial, task, trained, tmp_path):
    """tools/dist_test.sh with two processes predicts what tools/test.py does, of an odd number of pictures."""
    checkpoint = trained(task)
    certain = "model['test_cfg'] = dict(score_thr=0.)\n" if task == 'detector' else ''
    Path('config.py').write_text(CONFIGS[task] + certain)
    pictures = int(trial.random.choice([1, 3]))
    outs = []
    for name, command in dict(
        one=[sys.executable, ROOT / 'tools/test.py', 'config.py', checkpoint],
        two=[ROOT / 'tools/dist_test.sh', 'config.py', checkpoint, '2'],
    ).items():
        outs.append(tmp_path / (name if task == 'segmenter' else f'{name}.pkl'))
        run_tool([*command, '--out', outs[-1], '--cfg-options', f'test_dataloader.dataset.indices={pictures}'])
    one, two = map(saved, outs)
    trial.note(pictures=pictures)
    assert len(one) == pictures and same(one, two)
