"""Which samples make the batches of a training."""

import copy
import pickle
import random
from itertools import repeat
from types import SimpleNamespace

import numpy as np
import pytest
import toy
from mmengine.logging import MessageHub
from mmengine.registry import DATA_SAMPLERS, DATASETS
from torch.utils.data import BatchSampler, DataLoader, Sampler

from mmsoft.engine import loops
from mmsoft.engine.samples import NamedSamples, Numbered, NumberedBatches
from mmsoft.utils import UsageError

pytestmark = pytest.mark.usefixtures('inside')


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


def test_trained_batches_are_drawn_or_skipped():
    """As mmengine draws them, and onedl-mmengine skips them."""
    for skip in (False, True):
        batches = loops._Batches(repeat(None, 2), DataLoader(range(4), batch_size=2))
        if skip:
            batches.skip_iter(2)
        else:
            assert [next(batches), next(batches)] == [None, None]
        assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]] and len(batches.dataset) == 4
