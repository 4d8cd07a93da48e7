"""Training loops whose iterations know their random states: a resumed training equals an uninterrupted one.

mmengine's checkpoints hold neither random states nor the place in the data. With these loops the random states of each
iteration and each sample follow from the seed and their numbers, and training continues with its next sample: equal to
the bit, with any number of workers, if the device computes reproducibly (``randomness=dict(deterministic=True)`` on a
GPU). Number of processes and batch size must stay. Gradients that are accumulated over iterations are not kept.
"""

import random
from collections import namedtuple
from collections.abc import Iterator
from itertools import chain, count, islice, repeat
from typing import Any, Optional, Union

import numpy as np
import torch
from mmengine.dist import broadcast_object_list, get_dist_info, get_rank
from mmengine.logging import MMLogger
from mmengine.registry import DATA_SAMPLERS, DATASETS
from mmengine.runner import BaseLoop, loops
from mmengine.runner import Runner as MMRunner
from mmengine.structures import BaseDataElement
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from mmsoft.registry import LOOPS, RUNNERS
from mmsoft.utils import UsageError
from mmsoft.utils.config import explained

Key = tuple[int, ...]  # the seed; whether random states are an iteration's (0), a sample's (1), a draw's (2); numbers
Numbered = namedtuple('Numbered', 'key index')  # an index of a data set, which may be a tuple itself


def set_random_states(*key: int) -> None:
    """Sets the states of ``random``, NumPy and PyTorch (CPU, CUDA) to what follows from non-negative numbers.

    ``torch.manual_seed`` would format the call stack for every kind of device not in use, up to milliseconds a sample.
    """
    python, numpy, low, high = map(int, np.random.SeedSequence(key).generate_state(4))
    random.seed(python)
    np.random.seed(numpy)
    seed = high << 32 | low
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


class BrokenSample(UsageError):
    """A sample cannot be loaded; the message is the sentence, or a data loader worker's trace that ends in it."""

    def __init__(self, message: str) -> None:
        super().__init__(message.rsplit(f'{type(self).__name__}: ', 1)[-1].strip())


class NamedSamples(Dataset):
    """A data set that names a sample which cannot be loaded; all other attributes, and its class, are ``dataset``'s."""

    def __init__(self, dataset: Union[dict, Dataset]) -> None:
        vars(self)['_samples'] = DATASETS.build(dataset) if isinstance(dataset, dict) else dataset

    @property
    def __class__(self) -> type:
        return type(self._samples)  # samplers and hooks ask isinstance

    def __reduce__(self) -> tuple:
        return NamedSamples, (self._samples,)

    def __len__(self) -> int:
        return len(self._samples)

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):  # pickle asks before there is a data set
            raise AttributeError(name)
        return getattr(self._samples, name, *[self._samples] * (name == 'dataset'))  # unless it wraps another

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._samples, name, value)  # mmdet's PipelineSwitchHook sets the pipeline

    def __getitem__(self, index: Any) -> Any:
        """Loads a sample by its index, alone or :class:`Numbered`; BrokenSample if it cannot be."""
        if isinstance(index, Numbered):
            key, index = index
            set_random_states(*key)
        try:
            return self._samples[index]
        except Exception as error:  # whatever a pipeline makes of what it finds
            reason = f'{type(error).__name__}: {error}'.splitlines()[0]
            mixes = hasattr(self._samples, 'pipeline_types')  # as of MultiImageMixDataset: any may be it
            named = hasattr(self._samples, 'get_data_info') and not (mixes or isinstance(index, tuple))
            info = self._samples.get_data_info(index) if named else {}
            name = info.get('img_path') or f'Sample {index} of {type(self._samples).__name__}'
            raise BrokenSample(f'{name} cannot be loaded ({reason}); fix it or remove its annotations.') from error


def check_labels(batch: Any, model: nn.Module) -> None:
    """Raises BrokenSample if a label is none of the classes of mmseg's or mmpretrain's model, or a map has colours."""
    samples = batch.get('data_samples') if isinstance(batch, dict) else None
    for sample in [one for one in samples or () if isinstance(one, BaseDataElement)]:
        is_map = 'gt_sem_seg' in sample
        head: Any = getattr(getattr(model, 'module', model), 'decode_head' if is_map else 'head', None)
        if hasattr(head, 'ignore_index' if is_map else 'num_classes') and (is_map or 'gt_label' in sample):
            labels = sample.gt_sem_seg.data if is_map else sample.gt_label[None]
            left_out = getattr(head, 'ignore_index', 0)
            strange = labels[((labels < 0) | (labels >= head.num_classes)) & (labels != left_out)]
            if labels.size(0) != 1 or len(strange):
                what = 'colours' if labels.size(0) != 1 else f'the value {int(strange[0])}'
                classes = f'classes are 0 to {head.num_classes - 1}' + f', and {left_out} is left out' * is_map
                label = f'a label{" map" * is_map} with {what}'
                raise BrokenSample(f'{sample.get("img_path", "An image")} has {label}: {classes}.')


class NumberedBatches:
    """A batch sampler whose samples come with the keys of their random states.

    A key has the number of the iteration and the sample's place among those of all processes, whatever their number and
    that of workers. ``batches`` is the config of the batch sampler inside; ``endless`` ones go on with the next epoch.
    Before they are asked for, ``seed`` of all keys, ``first``, the number of the first iteration, and ``trained``, how
    many batches to leave out, are set.
    """

    def __init__(self, sampler: Sampler, batch_size: int, batches: dict, endless: bool) -> None:
        self.sampler, self.batch_size, self.endless = sampler, batch_size, endless
        self.batches = DATA_SAMPLERS.build(batches, default_args=dict(sampler=sampler, batch_size=batch_size))
        self.seed = self.first = self.trained = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Numbered]]:
        (rank, world_size), batches = get_dist_info(), self._batches()
        for iteration in count(self.first - self.trained):
            if not type(self.sampler).__module__.startswith('mmengine.'):  # others may draw from the process's states
                set_random_states(self.seed, 2, iteration)
            batch = next(batches, None)
            if batch is None:
                return
            if iteration >= self.first:
                keys = ((self.seed, 1, iteration, place * world_size + rank) for place in range(len(batch)))
                yield [*map(Numbered, keys, batch)]

    def _batches(self) -> Iterator[list]:
        yield from self.batches
        for epoch in count(1) if self.endless else ():
            if hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(epoch)
            yield from self.batches


class _Resumable:
    """What the loops have in common: a loader of :class:`NumberedBatches`, ``endless`` if epochs do not count."""

    endless = False

    def __init__(self, runner: MMRunner, dataloader: dict, **kwargs) -> None:
        config = dict(dataloader)
        batches = config.get('batch_sampler') or dict(type=BatchSampler, drop_last=config.pop('drop_last', False))
        config['batch_sampler'] = dict(type=NumberedBatches, batches=batches, endless=self.endless)
        loader = Runner.build_dataloader(config, seed=runner.seed)
        # mmengine's endless loop would start the loader's workers now, before it is known where to begin.
        super().__init__(runner, _Batches(loader, 0) if self.endless else loader, **kwargs)
        self.dataloader = loader

    def run(self) -> Any:
        """Trains, from where the checkpoint ended if there is one."""
        seed = [self.runner.seed]  # after resuming, the checkpoint's
        broadcast_object_list(seed)
        self.batches: NumberedBatches = self.dataloader.batch_sampler
        self.batches.seed = self.batches.sampler.seed = seed[0]
        self.batches.first, self.batches.trained = self.iter, self.trained()
        if self.endless:
            self.dataloader_iterator = _Batches(self.dataloader, self.iter)
        return super().run()

    def run_iter(self, *args) -> None:
        """Trains on a batch."""
        set_random_states(self.batches.seed, 0, get_rank(), self.iter)
        try:
            super().run_iter(*args)
        except (AssertionError, IndexError, RuntimeError):  # of a loss, which names no file
            check_labels(args[-1], self.runner.model)
            raise


@LOOPS.register_module()
class EpochBasedTrainLoop(_Resumable, loops.EpochBasedTrainLoop):
    """mmengine's loop, with its arguments, resumed to the bit: ``type='mmsoft.EpochBasedTrainLoop'``."""

    def run_epoch(self) -> None:
        """Trains for an epoch, or for the rest of an interrupted one."""
        self.batches.first = self.iter
        begin = [self.epoch, self.iter - self.batches.trained, len(self.dataloader)]
        self.runner.message_hub.update_info('epoch_begin', begin)
        super().run_epoch()
        self.batches.trained = 0

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Trains on a batch."""
        super().run_iter(idx + self.batches.trained, data_batch)

    def trained(self) -> int:
        """Batches of this epoch that are trained; none if an epoch has another number of them than before."""
        size = len(self.dataloader)
        epoch, begin, size_then = self.runner.message_hub.get_info('epoch_begin', [self.epoch, self.epoch * size, size])
        trained = self.iter - begin
        return trained if (epoch, size_then) == (self.epoch, size) and 0 <= trained <= size else 0


@LOOPS.register_module()
class IterBasedTrainLoop(_Resumable, loops.IterBasedTrainLoop):
    """mmengine's loop, with its arguments, resumed to the bit without loading what is done."""

    endless = True

    def trained(self) -> int:
        """Batches that are trained."""
        return self.iter


class _Batches:
    """A loader's batches behind Nones for trained ones: mmengine draws and drops as many, onedl-mmengine skips them."""

    def __init__(self, loader: DataLoader, trained: int) -> None:
        self.dataset = loader.dataset
        self.batches = chain(repeat(None, trained), loader)

    def __iter__(self) -> Iterator:
        return self.batches

    def __next__(self) -> Any:
        return next(self.batches)

    def skip_iter(self, number: int) -> None:
        self.batches = islice(self.batches, number, None)


@RUNNERS.register_module()
class Runner(MMRunner):
    """mmengine's runner with the loops of this module for mmengine's, and with :class:`NamedSamples` in all loaders.

    Environment, config and the order of hooks, some hundred lines, are in the log file and not on the console. A config
    chooses it by ``runner_type = 'mmsoft.Runner'``.
    """

    def build_logger(self, *args, **kwargs) -> MMLogger:
        """See mmengine's runner."""
        logger = super().build_logger(*args, **kwargs)
        console = logger.handlers[0]  # tables of scores are of other modules than the runner
        console.addFilter(lambda record: record.module != 'runner' or '\n' not in record.getMessage())
        logger.info(f'Environment, config and order of hooks are in {logger.log_file}.')
        return logger

    def build_train_loop(self, loop: Union[BaseLoop, dict]) -> BaseLoop:
        """See mmengine's runner. ``'mmengine.EpochBasedTrainLoop'`` chooses mmengine's."""
        if isinstance(loop, dict) and isinstance(self._train_dataloader, dict):  # whose samples get keys
            loop = dict(loop)
            kind = loop.pop('type', None) or f'{"Epoch" if loop.pop("by_epoch") else "Iter"}BasedTrainLoop'
            name = kind.__name__ if kind in (loops.EpochBasedTrainLoop, loops.IterBasedTrainLoop) else kind
            loop['type'] = f'mmsoft.{name}' if name in ('EpochBasedTrainLoop', 'IterBasedTrainLoop') else kind
        return super().build_train_loop(loop)

    def build_param_scheduler(self, scheduler: Any) -> Any:
        """See mmengine's runner; UsageError if it cannot be built."""
        with explained('param_scheduler'):
            return super().build_param_scheduler(scheduler)

    @staticmethod
    def build_dataloader(dataloader: Union[DataLoader, dict], seed: Optional[int] = None, **kwargs) -> DataLoader:
        """See mmengine's runner."""
        if isinstance(dataloader, dict):
            dataloader = dict(dataloader, dataset=dict(type=NamedSamples, dataset=dataloader['dataset']))
        return MMRunner.build_dataloader(dataloader, seed, **kwargs)
