"""Samples with random states of their own, and the batches that say which."""

import random
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, Union

import numpy as np
import torch
from mmengine.dist import get_dist_info
from mmengine.registry import DATA_SAMPLERS, DATASETS
from torch.utils.data import Dataset, Sampler

from mmsoft.utils import UsageError

Key = tuple[int, ...]
OF_ITERATION, OF_SAMPLE = range(2)
"""What random states are for: the second number of their keys, behind the seed."""


def set_random_states(*key: int) -> None:
    """Sets the states of ``random``, NumPy and PyTorch, on all devices, to what follows from non-negative numbers."""
    python, numpy, low, high = map(int, np.random.SeedSequence(key).generate_state(4))
    random.seed(python)
    np.random.seed(numpy)
    torch.manual_seed(high << 32 | low)


class BrokenSample(UsageError):
    """A sample cannot be loaded; the message is the sentence, or a data loader worker's trace that ends in it."""

    def __init__(self, message: str) -> None:
        super().__init__(message.rsplit(f'{type(self).__name__}: ', 1)[-1].strip())


class NamedSamples(Dataset):
    """A data set that names a sample which cannot be loaded; all other attributes are those of the data set inside.

    Args:
        dataset (dict or Dataset): The data set inside, or its config.
    """

    def __init__(self, dataset: Union[dict, Dataset]) -> None:
        vars(self)['dataset'] = DATASETS.build(dataset) if isinstance(dataset, dict) else dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):  # pickle asks before there is a data set
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)  # mmdet's PipelineSwitchHook sets the pipeline

    def __getitem__(self, index: Union[int, tuple[Key, int]]) -> Any:
        """Loads a sample, given as its index, or as the key of its random states and its index.

        Raises:
            BrokenSample: If it cannot be loaded; says which it is, and what to do.
        """
        if isinstance(index, tuple):
            key, index = index
            set_random_states(*key)
        try:
            return self.dataset[index]
        except Exception as error:  # whatever a pipeline makes of what it finds
            reason = f'{type(error).__name__}: {error}'.splitlines()[0]
            info = self.dataset.get_data_info(index) if hasattr(self.dataset, 'get_data_info') else {}
            name = info.get('img_path') or f'Sample {index} of {type(self.dataset).__name__}'
            raise BrokenSample(
                f'{name} cannot be loaded ({reason}); fix it, or take it out of the annotations.'
            ) from error


class NumberedBatches:
    """A batch sampler whose samples come with the keys of their random states.

    A key is the seed, the number of the iteration and the sample's place among those of all processes. It depends
    neither on the number of workers nor on that of processes.

    Args:
        sampler (Sampler): Where the indices of samples come from.
        batch_size (int): Samples in a batch.
        batches (dict): Config of the batch sampler inside.
        endless (bool): Whether to go on after its end, with the sampler's next epoch.

    Attributes:
        seed: First number of all keys.
        first: Number of the first iteration.
        trained: How many batches to leave out in front.
    """

    def __init__(self, sampler: Sampler, batch_size: int, batches: dict, endless: bool) -> None:
        self.sampler, self.batch_size, self.endless = sampler, batch_size, endless
        self.batches = DATA_SAMPLERS.build(batches, default_args=dict(sampler=sampler, batch_size=batch_size))
        self.seed = self.first = self.trained = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[tuple[Key, int]]]:
        rank, world_size = get_dist_info()
        for iteration, batch in zip(count(self.first), islice(self._batches(), self.trained, None)):
            yield [
                ((self.seed, OF_SAMPLE, iteration, place * world_size + rank), index)
                for place, index in enumerate(batch)
            ]

    def _batches(self) -> Iterator[list[int]]:
        yield from self.batches
        for epoch in count(1) if self.endless else ():
            if hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(epoch)
            yield from self.batches
