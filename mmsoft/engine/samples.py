"""Samples of a batch: each has random states of its own, and one that cannot be loaded is named."""
import logging
import random
from typing import Any, List, Tuple

import numpy as np
import torch
from mmengine.dist import get_dist_info
from mmengine.logging import print_log
from torch.utils.data import Dataset

from mmsoft.utils.errors import UsageError

TRIES = 10
"""Broken samples in a row that are skipped; behind more there is more amiss than a broken picture."""


def set_random_states(*key: int) -> None:
    """Sets the states of ``random``, NumPy and PyTorch, on all devices, to what follows from some numbers.

    Args:
        *key: Whole numbers, not negative; another key gives independent states.
    """
    python, numpy, low, high = map(int, np.random.SeedSequence(key).generate_state(4))
    random.seed(python)
    np.random.seed(numpy)
    torch.manual_seed(high << 32 | low)


class BrokenSample(UsageError):
    """A sample cannot be loaded.

    Args:
        message: The sentence, or what a loader's worker makes of it: a trace that ends in the sentence.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.rsplit(f'{type(self).__name__}: ', 1)[-1].strip())


class Samples:
    """What PyTorch's loaders call as ``dataset.__getitems__``, in their workers: names what cannot be loaded.

    Args:
        dataset: The data set.
    """

    advice = ''

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __call__(self, batch: List[int]) -> List[Any]:
        """Loads a batch, given as the samples' indices."""
        return [self.load(index) for index in batch]

    def load(self, index: int) -> Any:
        """Loads a sample.

        Raises:
            BrokenSample: If it cannot be loaded; says which it is, and what to do.
        """
        try:
            return self.dataset[index]
        except Exception as error:  # whatever a pipeline makes of what it finds
            reason = f'{type(error).__name__}: {error}'.splitlines()[0]
            raise BrokenSample(f'{self._name(index)} cannot be loaded ({reason}); mend it or take it out of the '
                               f'annotations{self.advice}.') from error

    def _name(self, index: int) -> str:
        """The sample's picture, or what else there is to say."""
        try:
            info = self.dataset.get_data_info(index)
            return str(info.get('img_path') or info)
        except Exception:
            return f'Sample {index} of {type(self.dataset).__name__}'


class ReproducibleSamples(Samples):
    """Each sample has random states of its own.

    They follow from the key, the iteration and the sample's place among those of all processes, whoever loads it: they
    depend neither on the number of workers nor on that of processes.

    Args:
        dataset: The data set.
        skip_broken: Whether to warn of a sample that cannot be loaded, and take another one for it.
        *key: Numbers that the states of all samples depend on.
    """

    advice = ', or have such samples left out by skip_broken=True of ReproducibleTrainingHook'

    def __init__(self, dataset: Dataset, skip_broken: bool, *key: int) -> None:
        super().__init__(dataset)
        self.skip_broken, self.key = skip_broken, key
        self.rank, self.world_size = get_dist_info()

    def __call__(self, batch: Tuple[int, List[int]]) -> List[Any]:
        """Loads a batch, given as the number of its iteration and the samples' indices."""
        iteration, indices = batch
        samples = []
        for place, index in enumerate(indices):
            set_random_states(*self.key, iteration, place * self.world_size + self.rank)
            samples.append(self._load_or_skip(index))
        return samples

    def _load_or_skip(self, index: int) -> Any:
        for _ in range(TRIES * self.skip_broken):
            try:
                return self.load(index)
            except BrokenSample as error:
                print_log(f'{error} Another sample takes its place.', 'current', logging.WARNING)
            index = np.random.randint(len(self.dataset))
        return self.load(index)
