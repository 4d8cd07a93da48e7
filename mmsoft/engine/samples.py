"""Samples of data sets: errors name the sample that failed, and random states follow from a sample's number."""

import random
from collections import namedtuple
from collections.abc import Iterator
from itertools import count
from typing import Any, Union

import numpy as np
import torch
from mmengine.dist import get_dist_info
from mmengine.registry import DATA_SAMPLERS, DATASETS
from mmengine.structures import BaseDataElement
from torch import nn
from torch.utils.data import Dataset, Sampler

from mmsoft.utils import UsageError

# An index of a data set, which may be a tuple itself, and the key of the sample's random states: the seed; 0 for an
# iteration, 1 for a sample, 2 for a draw of indices; and their numbers.
Numbered = namedtuple('Numbered', 'key index')


def set_random_states(*key: int) -> None:
    """Seeds ``random``, NumPy and PyTorch (CPU, CUDA) with a key of non-negative numbers.

    ``torch.manual_seed`` would format the call stack for each kind of unused device, up to milliseconds per sample.
    """
    python, numpy, low, high = map(int, np.random.SeedSequence(key).generate_state(4))
    random.seed(python)
    np.random.seed(numpy)
    seed = high << 32 | low
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


class BrokenSample(UsageError):
    """A sample cannot be loaded; ``message`` is an error message, or a worker's trace that ends with one."""

    def __init__(self, message: str) -> None:
        super().__init__(message.rsplit(f'{type(self).__name__}: ', 1)[-1].strip())


class NamedSamples(Dataset):
    """Wraps ``dataset`` and names samples that cannot be loaded; its class and other attributes are the data set's."""

    def __init__(self, dataset: Union[dict, Dataset]) -> None:
        vars(self)['_samples'] = DATASETS.build(dataset) if isinstance(dataset, dict) else dataset

    @property
    def __class__(self) -> type:
        return type(self._samples)  # samplers and hooks call isinstance

    def __reduce__(self) -> tuple:
        return NamedSamples, (self._samples,)

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator:
        return iter(self._samples)

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):  # pickle asks before there is a data set
            raise AttributeError(name)
        return getattr(self._samples, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._samples, name, value)  # mmdet's PipelineSwitchHook sets the pipeline

    def __getitem__(self, index: Any) -> Any:
        """Loads a sample by its index, alone or :class:`Numbered`; raises BrokenSample if loading fails."""
        if isinstance(index, Numbered):
            key, index = index
            set_random_states(*key)
        try:
            return self._samples[index]
        except Exception as error:  # pipelines raise exceptions of any type
            reason = f'{type(error).__name__}: {error}'.splitlines()[0]
            mixes = hasattr(self._samples, 'pipeline_types')  # MultiImageMixDataset: any image may be broken
            named = hasattr(self._samples, 'get_data_info') and not (mixes or isinstance(index, tuple))
            info = self._samples.get_data_info(index) if named else {}
            name = info.get('img_path') or f'Sample {index} of {type(self._samples).__name__}'
            raise BrokenSample(f'{name} cannot be loaded ({reason}); fix it or remove its annotations.') from error


def check_labels(batch: Any, model: nn.Module) -> None:
    """Raises BrokenSample if a label does not fit the model of mmseg or mmpretrain, or a label map its image."""
    samples = batch.get('data_samples') if isinstance(batch, dict) else None
    bare = getattr(model, 'module', model)
    if not isinstance(samples, (list, tuple)) or hasattr(bare, 'prototype'):  # labels of retrieval are images
        return
    views = [each if isinstance(each, (list, tuple)) else [each] for each in samples]  # several with --tta
    for sample in [one for each in views for one in each if isinstance(one, BaseDataElement)]:
        is_map = 'gt_sem_seg' in sample
        head = getattr(bare, 'decode_head' if is_map else 'head', None)
        head = head[-1] if isinstance(head, nn.ModuleList) else head
        count = getattr(head, 'num_classes', None)
        left_out = getattr(head, 'ignore_index', None if is_map else 0)  # 0 is a class: classifiers ignore no label
        labels = sample.gt_sem_seg.get('data') if is_map else sample.get('gt_label')  # mmdet's maps have other names
        if not isinstance(count, int) or count < 2 or left_out is None or not isinstance(labels, torch.Tensor):
            continue
        strange = labels[((labels < 0) | (labels >= count)) & (labels != left_out)]
        name, has_colours = sample.get('img_path', 'An image'), is_map and labels.size(0) != 1
        if has_colours or len(strange):
            what = 'colours' if has_colours else f'the value {int(strange[0])}'
            kind, others = ('label map', f', and {left_out} is left out') if is_map else ('label', '')
            raise BrokenSample(f'{name} has a {kind} with {what}: classes are 0 to {count - 1}{others}.')
        sizes = [tuple(sample.get(key)[:2]) for key in ('ori_shape', 'img_shape', 'pad_shape') if sample.get(key)]
        if is_map and sizes and tuple(labels.shape[1:]) not in sizes:
            raise BrokenSample(f'{name} has a label map of another size.')


class NumberedBatches:
    """A batch sampler whose samples come with the keys of their random states.

    A key has the iteration and the sample's place in the batch of all processes, so it does not depend on the number of
    processes and workers. ``batches`` is the config of the inner batch sampler; with ``endless``, it continues with the
    next epoch. Before use, set ``seed``, the iteration ``begin`` of the epoch, and ``first``, the first to load.
    """

    def __init__(self, sampler: Sampler, batch_size: int, batches: dict, endless: bool) -> None:
        self.sampler, self.batch_size, self.endless = sampler, batch_size, endless
        self.batches = DATA_SAMPLERS.build(batches, default_args=dict(sampler=sampler, batch_size=batch_size))
        self.seed = self.begin = self.first = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Numbered]]:
        rank, world_size = get_dist_info()
        batches, first = self._batches(), self.first
        for iteration in count(self.begin):
            if not type(self.sampler).__module__.startswith('mmengine.'):  # others may draw from global states
                set_random_states(self.seed, 2, iteration)
            if (batch := next(batches, None)) is None:
                return
            if iteration >= first:
                keys = ((self.seed, 1, iteration, place * world_size + rank) for place in range(len(batch)))
                yield [*map(Numbered, keys, batch)]

    def _batches(self) -> Iterator[list]:
        yield from self.batches
        if not self.batches:
            raise UsageError('There is no batch: drop_last drops one smaller than train_dataloader.batch_size.')
        for epoch in count(1) if self.endless else ():
            if hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(epoch)
            yield from self.batches
