"""Long runs: nothing grows, nothing is poisoned, and one broken image does not end them."""

import gc
import json
import os
import threading
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from mmcv.transforms import TRANSFORMS, BaseTransform
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from scipy.stats import theilslopes
from trainings import CONFIGS, forget_runs

from mmsoft.apis import launch, predict, prediction
from mmsoft.engine.samples import BrokenSample
from mmsoft.utils import UsageError

pytestmark = pytest.mark.usefixtures('inside')

MEGABYTES = 25
"""Memory may grow by so much, by fragmentation, however long it takes."""
LASTING = 4
"""Kilobytes for each iteration or picture of a long run, which would be 400 megabytes after 100,000."""


def use():
    """Resident megabytes of this process and of its children, its open files and threads, and how many children."""
    gc.collect()
    children = Path(f'/proc/self/task/{os.getpid()}/children').read_text().split()
    own, *theirs = (
        int(Path(f'/proc/{pid}/statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE') / 2**20
        for pid in ('self', *children)
    )
    return dict(
        megabytes=round(own, 2),
        workers=round(sum(theirs), 2),
        files=len(os.listdir('/proc/self/fd')),
        threads=threading.active_count(),
        tasks=len(os.listdir('/proc/self/task')),
        children=len(children),
    )


def check(seen, every, trial):
    """The last ones are no more than those when all had been used once, and memory does not grow."""
    first, last = seen[len(seen) // 4], seen[-1]
    trial.note(first=first, last=last)
    for name in ('files', 'threads', 'tasks', 'children'):
        assert last[name] <= first[name], name
    for name in ('megabytes', 'workers'):
        assert last[name] - first[name] < MEGABYTES
        late = np.array([one[name] for one in seen[len(seen) // 4 :]])
        kilobytes = 1024 * theilslopes(late)[0] / every if len(late) > 10 else 0.0
        trial.note(**{f'kilobytes_each_{name}': round(kilobytes, 3)})
        assert kilobytes < LASTING


@HOOKS.register_module()
class UseHook(Hook):
    """Looks at what is used now and then, and at the loss always."""

    seen = []

    def __init__(self, every):
        self.every = every

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        assert torch.isfinite(outputs['loss'])
        if self.every_n_train_iters(runner, self.every):
            self.seen.append(use())


def train(task, work_dir, change='', **options):
    Path('config.py').write_text(CONFIGS[task] + change)
    forget_runs()
    launch.train('config.py', str(work_dir), cfg_options=options)


LENGTHS = 20, 2000
SAMPLES = 5, 40


@pytest.mark.parametrize('task', ['detector', 'segmenter'])
def test_training(trial, full, task, tmp_path):
    """2,000 iterations with evaluations: finite, and no growth of memory, open files, threads or processes."""
    if not full and task != 'segmenter':
        pytest.skip('in the campaign')
    length = LENGTHS[full]
    every = length // SAMPLES[full]
    UseHook.seen.clear()
    hook = f"custom_hooks = [*_base_.custom_hooks, dict(type='UseHook', every={every})]\n"
    limits = (
        {'train_cfg.max_iters': length, 'train_cfg.val_interval': length // 5}
        if task == 'segmenter'
        else {'train_cfg.max_epochs': length // 4, 'train_cfg.val_interval': length // 20}
    )
    train(
        task,
        tmp_path,
        hook,
        **limits,
        **{
            'train_dataloader.num_workers': 1,
            'train_dataloader.persistent_workers': True,
            'default_hooks.checkpoint.interval': length,
            'default_hooks.checkpoint.by_epoch': False,
        },
    )
    check(UseHook.seen, every, trial)


CERTAIN = dict(detector="model['test_cfg'] = dict(score_thr=0.)\n", segmenter='')
"""Has a detector that has learned nothing find as much as it may."""


@pytest.mark.parametrize('task', ['detector', 'segmenter'])
def test_predicting(trial, full, task, tmp_path, monkeypatch):
    """2,000 predictions: no growth of memory, open files, threads or processes."""
    if not full and task != 'detector':
        pytest.skip('in the campaign')
    train(task, tmp_path / 'run', CERTAIN[task])
    pictures = tmp_path / 'pictures'
    pictures.mkdir()
    originals = sorted(Path('data/shapes/images/training').resolve().iterdir())
    for index in range(LENGTHS[full]):
        (pictures / f'{index}.jpg').symlink_to(originals[index % len(originals)])
    seen, calls, every = [], count(), LENGTHS[full] // SAMPLES[full]
    read = prediction.read_image
    monkeypatch.setattr(prediction, 'read_image', lambda path: watch(path) or read(path))

    def watch(path):
        if next(calls) % every == 0:
            seen.append(use())

    checkpoint = (tmp_path / 'run/last_checkpoint').read_text()
    assert predict('config.py', checkpoint, str(pictures), str(tmp_path / 'out'), save_pred=True) == []
    if task == 'detector':
        found = [json.loads(path.read_text())['scores'] for path in (tmp_path / 'out/preds').glob('*.json')]
        assert len(found) == LENGTHS[full] and sum(map(len, found)) > 50 * LENGTHS[full]
    check(seen, every, trial)


@TRANSFORMS.register_module()
class PoisonPicture(BaseTransform):
    """Makes NaN of one picture."""

    def transform(self, results):
        if results['img_path'].endswith('000007.jpg'):
            results['img'] = results['img'].astype('float32') * float('nan')
        return results


POISON = (
    "train_dataloader = dict(dataset=dict(pipeline=[*_base_.train_pipeline[:2], dict(type='PoisonPicture'), "
    '*_base_.train_pipeline[2:]]))\n'
)


@pytest.mark.parametrize('task', ['detector', 'segmenter'])
def test_one_poisoned_picture(trial, task, tmp_path):
    """NaN in one image: training ends with the error message, and no checkpoint holds it."""
    with pytest.raises(UsageError) as caught:
        train(
            task,
            tmp_path,
            POISON,
            **{
                'default_hooks.checkpoint.by_epoch': False,
                'default_hooks.checkpoint.interval': 1,
                'default_hooks.checkpoint.max_keep_ckpts': -1,
            },
        )
    said = str(caught.value)
    trial.note(said=said)
    assert 'is nan in iteration' in said and '000007.jpg' in said and '\n' not in said
    iteration = int(said.split('iteration ')[1].split(',')[0])
    assert {path.name for path in tmp_path.glob('*.pth')} == {f'iter_{i}.pth' for i in range(1, iteration)}
    for path in tmp_path.glob('*.pth'):
        assert all(tensor.isfinite().all() for tensor in torch.load(path, weights_only=False)['state_dict'].values())


def test_one_broken_picture(trial, tmp_path, monkeypatch):
    """A broken image: training ends with its name."""
    victim = Path('data/shapes/images/training/000007.jpg')
    whole = victim.read_bytes()
    monkeypatch.setattr(launch, 'ensure_shapes', lambda: victim.write_bytes(b'no picture'))
    try:
        with pytest.raises(BrokenSample, match='000007.jpg cannot be loaded .*fix it'):
            train('detector', tmp_path, **{'train_dataloader.num_workers': 1})
    finally:
        victim.write_bytes(whole)
