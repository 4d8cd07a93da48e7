"""A training that was interrupted anywhere equals one that was not, to the bit, and so does a repeated one."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import toy
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, RUNNERS
from mmengine.runner import EpochBasedTrainLoop as MMLoop
from mmengine.runner import Runner as MMRunner
from processes import in_two_processes
from torch.utils.data import DataLoader
from trainings import CONFIGS, ITERATIONS, forget_runs, same

from mmsoft.apis import launch
from mmsoft.engine import loops
from mmsoft.utils import UsageError

pytestmark = pytest.mark.usefixtures('inside')

KEPT = 'state_dict', 'optimizer', 'param_schedulers', 'ema_state_dict', 'seen'


@HOOKS.register_module()
class WatchHook(Hook):
    """Keeps losses and learning rates of every iteration, and interrupts one of them."""

    priority = 'LOW'

    def __init__(self, at=None):
        self.at = at
        self.seen = {}

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == self.at:
            raise KeyboardInterrupt
        losses = {name: float(value) for name, value in outputs.items()}
        self.seen[runner.iter] = dict(losses, lr=runner.optim_wrapper.get_lr()['lr'][0], place=batch_idx)

    def before_save_checkpoint(self, runner, checkpoint):
        checkpoint['seen'] = self.seen

    def after_load_checkpoint(self, runner, checkpoint):
        self.seen.update(checkpoint['seen'])


def train(task, work_dir, options=None, at=None, change=''):
    """Trains, up to an iteration only if it is given; returns what the last checkpoint has."""
    hook = f"custom_hooks = [*_base_.custom_hooks, dict(type='WatchHook', at={at})]\n"
    Path('config.py').write_text(CONFIGS[task] + hook + change)
    forget_runs()
    try:
        launch.train('config.py', str(work_dir), resume='auto', cfg_options=options)
    except KeyboardInterrupt:
        assert at is not None
    checkpoint = torch.load(Path(work_dir, 'last_checkpoint').read_text(), weights_only=True)
    return {key: checkpoint[key] for key in KEPT if key in checkpoint}


MIDDLE = {'default_hooks.checkpoint.by_epoch': False, 'default_hooks.checkpoint.interval': 3}


@pytest.mark.parametrize(
    'task, options',
    [
        pytest.param('detector', {}, marks=pytest.mark.slow),
        pytest.param('detector', MIDDLE, marks=pytest.mark.slow),
        ('segmenter', {}),
        ('classifier', MIDDLE),
    ],
    ids=['detector', 'detector in an epoch', 'segmenter', 'classifier in an epoch'],
)
def test_interrupted(task, options, tmp_path):
    whole = train(task, tmp_path / 'whole', options)
    assert sorted(whole['seen']) == list(range(ITERATIONS))
    cut = train(task, tmp_path / 'cut', options, at=5)
    assert 0 < len(cut['seen']) < ITERATIONS
    workers = {'train_dataloader.num_workers': 2, 'train_dataloader.persistent_workers': True}
    resumed = train(task, tmp_path / 'cut', {**options, **workers})
    assert resumed['seen'] == whole['seen'] and same(resumed, whole)


@HOOKS.register_module()
class LoadHook(Hook):
    """Loads all batches of an epoch again, as mmpretrain's PreciseBNHook."""

    loaded = {}

    def after_train_epoch(self, runner):
        self.loaded[runner.epoch] = [
            sample.img_path for batch in runner.train_dataloader for sample in batch['data_samples']
        ]


def test_hooks_load_whole_epochs_after_a_resume(tmp_path, monkeypatch):
    found = []
    for folder, at in (('whole', None), ('cut', 5), ('cut', None)):
        monkeypatch.setattr(LoadHook, 'loaded', {})
        train('classifier', tmp_path / folder, MIDDLE, at, change="custom_hooks.append(dict(type='LoadHook'))\n")
        found.append(LoadHook.loaded)
    whole, cut, resumed = found
    assert resumed == whole and [*whole] == [0, 1] and [*cut] == [0] and len(whole[0]) == 32


def test_without_a_seed_and_without_loading_what_is_done(tmp_path, monkeypatch):
    """mmengine shuffles anew when it resumes, and an iteration-based training loads all again."""
    whole = train('segmenter', tmp_path, change='randomness = dict(seed=None)\n', at=7)
    seed = torch.load(tmp_path / 'iter_6.pth', weights_only=True)['meta']['seed']
    read = []
    from mmseg.datasets import BaseSegDataset

    load = BaseSegDataset.prepare_data
    monkeypatch.setattr(BaseSegDataset, 'prepare_data', lambda self, index: read.append(index) or load(self, index))
    resumed = train('segmenter', tmp_path, change='randomness = dict(seed=None)\n')
    assert len(read) == 1 + 2 * 3 + 4  # a sample for the check, two iterations, and the evaluation
    expected = train('segmenter', tmp_path / 'again', {'randomness.seed': seed})
    assert same(resumed, expected) and len(whole['seen']) == 6


def test_another_number_of_iterations_in_an_epoch(tmp_path):
    """The interrupted epoch starts again, and the next one is whole."""
    train('detector', tmp_path, MIDDLE, at=7)
    done = train(
        'detector', tmp_path, {**MIDDLE, 'train_dataloader.batch_size': 6, 'default_hooks.checkpoint.interval': 1}
    )
    assert max(done['seen']) == 7 and [one['place'] for one in done['seen'].values()][-2:] == [0, 1]


class AverageHook(Hook):
    """Puts another network, with statistics of its own in each process, in the place of one, as EMAHook does."""

    def before_val_epoch(self, runner):
        runner.model.running_mean.fill_(3 + torch.distributed.get_rank())


def _statistics(rank):
    runner, means = object.__new__(loops.Runner), []
    runner._hooks, runner.model = [AverageHook()], torch.nn.BatchNorm2d(1)
    for name in ('before_train_epoch', 'before_val_epoch'):
        runner.model.running_mean.fill_(rank + 1)
        runner.call_hook(name)
        means.append((name, runner.model.running_mean.item()))
    return means


def test_processes_validate_what_is_saved(tmp_path):
    """The first process saves its weights, and batch norm's statistics are each one's own."""
    found = in_two_processes(tmp_path, _statistics)
    means = sorted([*found[0], *found[1]])
    assert means == [*(('before_train_epoch', mean) for mean in (1, 2)), *[('before_val_epoch', 3)] * 2]


@HOOKS.register_module()
class DrawHook(Hook):
    """Draws after each epoch."""

    def __init__(self):
        self.drawn = []

    def after_train_epoch(self, runner):
        self.drawn.append((torch.rand(1).item(), np.random.random(), random.random()))


def test_states_after_an_epoch_do_not_depend_on_workers(tmp_path):
    drawn = []
    for workers in (0, 1):
        data = dict(toy.config(tmp_path)['train_dataloader'], num_workers=workers)
        hooks = [dict(type='DrawHook')]
        runner = loops.Runner(
            **toy.config(tmp_path, train_dataloader=data, custom_hooks=hooks, randomness=dict(seed=1))
        )
        runner.train()
        drawn += [hook.drawn for hook in runner.hooks if isinstance(hook, DrawHook)]
    assert drawn[0] == drawn[1] and len({*drawn[0]}) == 2


def test_each_process_draws_for_itself(tmp_path, monkeypatch):
    drawn = []
    for rank in (0, 1):
        monkeypatch.setattr(loops, 'get_rank', lambda rank=rank: rank)
        hooks = [dict(type='DrawHook')]
        runner = loops.Runner(**toy.config(tmp_path, custom_hooks=hooks, randomness=dict(seed=1)))
        runner.train()
        drawn += [hook.drawn for hook in runner.hooks if isinstance(hook, DrawHook)]
    assert len({*drawn[0], *drawn[1]}) == 4


@pytest.mark.parametrize(
    'train_cfg, loop',
    [
        (dict(by_epoch=True, max_epochs=1), loops.EpochBasedTrainLoop),
        (dict(by_epoch=False, max_iters=1), loops.IterBasedTrainLoop),
        (dict(type='EpochBasedTrainLoop', max_epochs=1), loops.EpochBasedTrainLoop),
        (dict(type='IterBasedTrainLoop', max_iters=1), loops.IterBasedTrainLoop),
        (dict(type=MMLoop, max_epochs=1), loops.EpochBasedTrainLoop),  # as new-style configs write it
        (dict(type='mmengine.runner.EpochBasedTrainLoop', max_epochs=1), loops.EpochBasedTrainLoop),
        (dict(type='mmengine.runner.loops.IterBasedTrainLoop', max_iters=1), loops.IterBasedTrainLoop),
        (dict(type='mmengine.EpochBasedTrainLoop', max_epochs=1), MMLoop),
    ],
)
def test_the_runner_takes_our_loops(tmp_path, train_cfg, loop):
    runner = RUNNERS.build(Config(toy.config(tmp_path, train_cfg=train_cfg, runner_type='mmsoft.Runner')))
    runner.train()
    assert type(runner.train_loop) is loop and runner.train_dataloader.dataset.metainfo['classes'] == ('number',)
    assert runner.train_dataloader.batch_size == 2  # which mmpretrain's PreciseBNHook asks for


def test_a_schedule_that_cannot_be_built_is_one_sentence(tmp_path):
    """A warm-up that is longer than the training, for example."""
    schedule = dict(type='CosineAnnealingLR', begin=10, end=1)
    runner = loops.Runner(**toy.config(tmp_path, param_scheduler=schedule))
    with pytest.raises(UsageError, match=r'^param_scheduler cannot be built \(ValueError: .*begin=10, end=1'):
        runner.train()


def test_a_loader_of_ones_own_has_mmengine_s_loop(tmp_path):
    loader = DataLoader(
        toy.ToyData(), batch_size=2, collate_fn=lambda samples: {'inputs': [one['inputs'] for one in samples]}
    )
    runner = loops.Runner(**toy.config(tmp_path, train_dataloader=loader))
    runner.train()
    assert runner.iter == 4 and runner.train_dataloader is loader


@pytest.mark.parametrize('kind, length', [('Epoch', dict(max_epochs=2)), ('Iter', dict(max_iters=4))])
def test_a_loop_by_its_name(tmp_path, monkeypatch, kind, length):
    """With mmengine's own runner; and workers start once."""
    started = []
    start = DataLoader.__iter__
    monkeypatch.setattr(DataLoader, '__iter__', lambda self: started.append(self) or start(self))
    cfg = toy.config(tmp_path, train_cfg=dict(type=f'mmsoft.{kind}BasedTrainLoop', **length))
    cfg['train_dataloader'].update(num_workers=1, persistent_workers=True)
    runner = MMRunner.from_cfg(Config(cfg))
    runner.train()
    assert runner.iter == 4 and len(started) == (2 if kind == 'Epoch' else 1)


def test_long_messages_are_in_the_log_file_alone(tmp_path, capsys):
    runner = RUNNERS.build(Config(toy.config(tmp_path, runner_type='mmsoft.Runner', log_level='INFO')))
    runner.logger.info('scores:\n0.9')
    logged, printed = Path(runner.logger.log_file).read_text(), capsys.readouterr().out
    for part in ('System environment:', 'Config:', 'Hooks will be executed'):
        assert part in logged and part not in printed
    assert runner.logger.log_file in printed and 'scores:\n0.9' in printed


def test_mmdets_hooks_change_the_data_set(tmp_path):
    from mmdet.engine.hooks import PipelineSwitchHook

    runner = RUNNERS.build(Config(toy.config(tmp_path, runner_type='mmsoft.Runner')))
    runner.register_hook(PipelineSwitchHook(0, []))
    runner.train()
    assert runner.train_dataloader.dataset._samples.pipeline.transforms == []
