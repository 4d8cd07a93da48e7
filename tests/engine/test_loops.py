"""A training that was interrupted anywhere equals one that was not, to the bit, and so does a repeated one."""

import copy
import pickle
import random
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import toy
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.registry import DATA_SAMPLERS, DATASETS, HOOKS, MODELS, RUNNERS
from mmengine.runner import EpochBasedTrainLoop as MMLoop
from mmengine.runner import Runner as MMRunner
from mmengine.structures import PixelData
from mmpretrain.structures import DataSample
from mmseg.structures import SegDataSample
from processes import in_two_processes
from torch.utils.data import BatchSampler, DataLoader, Sampler
from trainings import CONFIGS, ITERATIONS, forget_runs, same

from mmsoft.apis import launch
from mmsoft.engine import loops
from mmsoft.engine.samples import NamedSamples, Numbered, NumberedBatches, check_labels
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


@pytest.mark.parametrize(
    'iteration, epoch, begin, trained',
    [
        *((5, 1, None, 1), (4, 0, None, 4), (4, 1, None, 0), (9, 1, None, 0), (3, 1, None, 0)),
        *((14, 2, [2, 12, 4], 2), (13, 2, [2, 12, 6], 0), (10, 2, [1, 5, 5], 0), (13, 3, [2, 9, 4], 0)),
    ],
)
def test_batches_of_an_epoch_that_are_trained(iteration, epoch, begin, trained):
    """Of four in an epoch; those of another number of iterations than before count as none."""
    hub = MessageHub('epochs', runtime_info=dict(epoch_begin=begin) if begin else {})
    loop = SimpleNamespace(iter=iteration, epoch=epoch, dataloader=range(4), runner=SimpleNamespace(message_hub=hub))
    assert loops.EpochBasedTrainLoop.epoch_begin(loop) == iteration - trained


@DATASETS.register_module()
class Counted(toy.ToyData):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


def test_epochs_are_whole_after_images_are_removed(tmp_path):
    """Eight iterations are two epochs of four, and were two epochs of three and a part of a third."""
    data = dict(toy.config(tmp_path)['train_dataloader'], batch_size=1)
    for count, epochs, options in ((4, 2, {}), (3, 3, dict(resume=True))):
        data['dataset'], train_cfg = dict(type='Counted', count=count), dict(by_epoch=True, max_epochs=epochs)
        runner = loops.Runner(**toy.config(tmp_path, train_dataloader=data, train_cfg=train_cfg, **options))
        runner.train()
    assert (runner.epoch, runner.iter) == (3, 2 * 4 + 3)
    assert runner.max_iters == runner.iter  # so that the last iteration saves a checkpoint


def _of_large_batches(folder, sampler, train_cfg):
    """A runner whose data set of four has fewer images than a batch."""
    data = dict(toy.config(folder)['train_dataloader'], batch_size=6, drop_last=True, sampler=dict(type=sampler))
    return loops.Runner(**toy.config(folder, train_dataloader=data, train_cfg=train_cfg))


@pytest.mark.parametrize('train_cfg', [dict(by_epoch=True, max_epochs=1), dict(by_epoch=False, max_iters=1)])
def test_fewer_images_than_a_batch(tmp_path, train_cfg):
    """Epochs without an iteration would save random weights, and iterations would wait for a batch forever."""
    with pytest.raises(UsageError, match='There is no batch: drop_last'):
        _of_large_batches(tmp_path, 'DefaultSampler', train_cfg).train()


def test_a_batch_sampler_of_the_config_makes_the_batches(tmp_path):
    batches = dict(type=BatchSampler, drop_last=True)
    data = dict(toy.config(tmp_path)['train_dataloader'], batch_size=3, batch_sampler=batches)
    runner = loops.Runner(**toy.config(tmp_path, train_dataloader=data))
    runner.train()
    assert (runner.epoch, runner.iter) == (2, 2)


def test_an_infinite_sampler_fills_any_batch(tmp_path):
    runner = _of_large_batches(tmp_path, 'InfiniteSampler', dict(by_epoch=False, max_iters=1))
    runner.train()
    assert runner.iter == 1


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


@DATA_SAMPLERS.register_module()
class Random(Sampler):
    """Draws from the random states of the process, as mmdet's GroupMultiSourceSampler does."""

    def __init__(self, dataset, seed=0):
        self.limit = len(dataset)

    def __iter__(self):
        yield from (int(np.random.randint(self.limit)) for _ in range(8))

    def __len__(self):
        return 8


def test_draws_of_samplers_follow_from_the_seed():
    def indices(trained, noise):
        batches = NumberedBatches(Random(range(1000)), 2, dict(type=BatchSampler, drop_last=False), endless=False)
        batches.seed, batches.begin, batches.first = 3, 10, 10 + trained
        found = []
        for batch in batches:
            np.random.seed(noise)  # training in between
            found += [one.index for one in batch]
        return found

    whole = indices(0, 1)
    assert len({*whole}) > 4 and indices(0, 2) == whole and indices(2, 5) == whole[4:]


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


class Video(toy.ToyData):
    """Its samples are frames (video, number) of videos without boxes."""

    def __getitem__(self, index):
        return (*index, random.random())

    def get_data_info(self, index):
        return dict(video_id=index, images=[])


def test_data_sets_keep_their_class_and_their_indices():
    """mmdet's samplers of videos ask for both."""
    named = NamedSamples(Video())
    assert isinstance(named, Video) and isinstance(named, NamedSamples)
    for other in (named, pickle.loads(pickle.dumps(named)), copy.deepcopy(named)):
        assert type(other) is NamedSamples and other[(2, 5)][:2] == (2, 5)
        assert other[Numbered((1, 2), (2, 5))] == other[Numbered((1, 2), (2, 5))]
    around = Video()
    around.dataset = inner = Video()
    assert NamedSamples(around).dataset is inner  # as that of a ClassBalancedDataset


class Mixed(toy.ToyData):
    """As mmdet's MultiImageMixDataset: a sample is made of several, of which its info has the first."""

    pipeline_types = ['Mosaic']

    def __getitem__(self, index):
        raise ValueError('b.jpg is broken')

    def get_data_info(self, index):
        return dict(img_path='a.jpg')


def test_of_images_that_are_mixed_only_the_error_is_told():
    with pytest.raises(UsageError, match=r'^Sample 0 of Mixed cannot be loaded \(ValueError: b.jpg is broken\)'):
        NamedSamples(Mixed())[0]


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


META = dict(img_path='a.jpg', img_shape=(2, 2), ori_shape=(4, 4))


@MODELS.register_module()
class ToySegmenter(toy.ToyModel):
    """Three classes, and 254 is left out."""

    def __init__(self):
        super().__init__()
        self.decode_head = torch.nn.Module()
        self.decode_head.num_classes, self.decode_head.ignore_index = 3, 254

    def forward(self, inputs, data_samples, mode='tensor'):
        labels = torch.stack([sample.gt_sem_seg.data.squeeze(0) for sample in data_samples])
        scores = super().forward(inputs)['loss'].expand(len(labels), 3, 2, 2)
        return dict(loss=F.cross_entropy(scores, labels, ignore_index=254))


@DATASETS.register_module()
class LabelMaps(toy.ToyData):
    def __init__(self, labels):
        self.labels = labels

    def __getitem__(self, index):
        sample = SegDataSample(gt_sem_seg=PixelData(data=torch.tensor(self.labels)), metainfo=META)
        return dict(inputs=torch.rand(1), data_samples=sample)


@pytest.mark.parametrize(
    'labels, says',
    [
        ([[[0, 1], [2, 254]]], ''),
        ([[[0, 1], [2, 3]]], 'with the value 3: classes are 0 to 2, and 254 is left out'),
        ([[[0, 100], [200, 1]]], 'with the value 100'),
        ([[[0, 1], [1, 2]], [[0, 1], [1, 2]], [[0, 1], [1, 2]]], 'with colours'),
        ([[[0, 1], [1, 2]], [[1, 1], [1, 1]]], 'with colours'),  # grey and transparent
        ([[[0, 1, 1], [2, 2, 0]]], 'of another size'),
    ],
    ids=str,
)
@pytest.mark.parametrize('train_cfg', [dict(by_epoch=True, max_epochs=1), dict(by_epoch=False, max_iters=2)], ids=str)
def test_label_maps_have_the_classes_of_the_model(tmp_path, labels, says, train_cfg):
    """The error of the loss names no file."""
    data = dict(toy.config(tmp_path)['train_dataloader'], dataset=dict(type='LabelMaps', labels=labels))
    data['collate_fn'] = dict(type='pseudo_collate')
    runner = loops.Runner(
        **toy.config(tmp_path, model=dict(type='ToySegmenter'), train_dataloader=data, train_cfg=train_cfg)
    )
    if says:
        with pytest.raises(UsageError, match=f'^a.jpg has a label map {says}'):
            runner.train()
        batch = dict(data_samples=[runner.train_dataloader.dataset[0]['data_samples']])
        for hook in ('before_val_iter', 'before_test_iter'):  # or else scores are of other labels
            with pytest.raises(UsageError, match=f'^a.jpg has a label map {says}'):
                runner.call_hook(hook, batch_idx=0, data_batch=batch)
    else:
        runner.train()


def test_labels_are_classes_of_the_classifier():
    """Counted from 1, the last one is none."""
    model, samples = torch.nn.Module(), [DataSample(metainfo=dict(img_path='a.jpg')).set_gt_label(2)]
    model.backbone, model.head = torch.nn.Module(), torch.nn.Module()
    model.head.num_classes = 3
    model.backbone.head = torch.nn.Module()
    model.backbone.head.num_classes = 2
    check_labels(dict(data_samples=samples), model)
    samples.append(DataSample(metainfo=dict(img_path='b.jpg')).set_gt_label(3))
    with pytest.raises(UsageError, match=r'^b.jpg has a label with the value 3: classes are 0 to 2\.$'):
        check_labels(dict(data_samples=samples), model)
    with pytest.raises(UsageError, match='the value -1: classes are 0 to 2'):
        check_labels(dict(data_samples=[samples[0].set_gt_label(-1)]), model)


@pytest.mark.parametrize('head', [{}, dict(num_classes=3), dict(num_classes=None, ignore_index=255)], ids=str)
def test_label_maps_that_no_head_is_for(head):
    """As of mmdet's panoptic detectors: the error of the loss is what is told."""
    model = torch.nn.Module()
    model.decode_head = torch.nn.Module()
    vars(model.decode_head).update(head)
    for maps in (PixelData(sem_seg=torch.full((1, 2, 2), 9)), PixelData(data=torch.full((1, 2, 2), 255))):
        check_labels(dict(data_samples=[SegDataSample(gt_sem_seg=maps)]), model)


def test_labels_that_are_no_classes():
    """Of a retrieval they are images; of a map of one class, foreground and background."""
    model = torch.nn.Module()
    model.head = model.decode_head = torch.nn.Module()
    model.head.num_classes, model.head.ignore_index = 3, 255
    retrieved = DataSample().set_gt_label(7)
    with pytest.raises(UsageError, match='the value 7'):
        check_labels(dict(data_samples=[retrieved]), model)
    model.prototype = None
    check_labels(dict(data_samples=[retrieved]), model)
    del model.prototype
    views = [retrieved.clone().set_gt_label(1), retrieved]  # of a test with --tta
    with pytest.raises(UsageError, match='the value 7'):
        check_labels(dict(data_samples=[views]), model)
    model.head.num_classes = 1
    maps = PixelData(data=torch.ones(1, 2, 2, dtype=torch.long))
    check_labels(dict(data_samples=[SegDataSample(gt_sem_seg=maps, metainfo=dict(ori_shape=None))]), model)
    for batch in ([1], dict(data_samples=torch.ones(2)), dict(data_samples=dict(a=[1])), dict(data_samples=None)):
        check_labels(batch, model)


def test_label_maps_are_as_large_as_their_images():
    """In the file of a test, in the pipeline of a training, or in a batch; nothing is said where sizes are unknown."""
    model = torch.nn.Module()
    model.decode_head = torch.nn.Module()
    model.decode_head.num_classes, model.decode_head.ignore_index = 3, 255
    maps = PixelData(data=torch.zeros(1, 4, 6, dtype=torch.long))
    for meta in ({}, dict(ori_shape=(4, 6, 3), img_shape=(8, 8)), dict(ori_shape=(9, 9), pad_shape=(4, 6))):
        check_labels(dict(data_samples=[SegDataSample(gt_sem_seg=maps, metainfo=meta)]), model)
    turned = SegDataSample(gt_sem_seg=maps, metainfo=dict(ori_shape=(6, 4), img_shape=(12, 8), pad_shape=(12, 8)))
    with pytest.raises(UsageError, match='An image has a label map of another size'):
        check_labels(dict(data_samples=[turned]), model)


def test_other_errors_of_a_loss_stay(tmp_path):
    data = dict(toy.config(tmp_path)['train_dataloader'], dataset=dict(type='LabelMaps', labels=[[[0, 1], [2, 2]]]))
    data['collate_fn'] = dict(type='pseudo_collate')
    runner = loops.Runner(**toy.config(tmp_path, model=dict(type='ToySegmenter'), train_dataloader=data))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match='of the program'):
        patch.setattr(ToySegmenter, 'forward', lambda *_, **__: (_ for _ in ()).throw(RuntimeError('of the program')))
        runner.train()


@pytest.mark.parametrize('error', [AssertionError, IndexError, RuntimeError])
def test_any_error_of_a_loss_may_be_one_of_labels(tmp_path, monkeypatch, error):
    data = dict(toy.config(tmp_path)['train_dataloader'], dataset=dict(type='LabelMaps', labels=[[[0, 1], [2, 3]]]))
    data['collate_fn'] = dict(type='pseudo_collate')
    runner = loops.Runner(**toy.config(tmp_path, model=dict(type='ToySegmenter'), train_dataloader=data))
    monkeypatch.setattr(ToySegmenter, 'forward', Mock(side_effect=error))
    with pytest.raises(UsageError, match='^a.jpg has a label map with the value 3'):
        runner.train()


def test_the_last_head_of_several_counts():
    """As of mmseg's cascades."""
    model = torch.nn.Module()
    model.decode_head = torch.nn.ModuleList(torch.nn.Module() for _ in range(2))
    for head, classes in zip(model.decode_head, (2, 3)):
        head.num_classes, head.ignore_index = classes, 255
    for value, says in ((2, ''), (3, 'the value 3: classes are 0 to 2')):
        sample = SegDataSample(gt_sem_seg=PixelData(data=torch.full((1, 2, 2), value)))
        with pytest.raises(UsageError, match=says) if says else nullcontext():
            check_labels(dict(data_samples=[sample]), SimpleNamespace(module=model))  # in several processes


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


def test_trained_batches_are_drawn_or_skipped():
    """As mmengine draws them, and onedl-mmengine skips them."""
    for skip in (False, True):
        batches = loops._Batches(repeat(None, 2), DataLoader(range(4), batch_size=2))
        if skip:
            batches.skip_iter(2)
        else:
            assert [next(batches), next(batches)] == [None, None]
        assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]] and len(batches.dataset) == 4
