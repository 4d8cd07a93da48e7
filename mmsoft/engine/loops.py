"""Training loops whose iterations know their random states: a resumed training equals an uninterrupted one.

mmengine's checkpoints hold neither random states nor the place in the data. With these loops the random states of each
iteration and each sample follow from the seed and their numbers, and training continues with its next sample. The
result equals that of an uninterrupted or a repeated training to the bit, with any number of workers, if the device
computes reproducibly (``randomness=dict(deterministic=True)`` on a GPU). The number of processes and the batch size
must stay. Gradients that are being accumulated over several iterations are not kept.
"""

import logging
from itertools import chain, repeat
from typing import Any, Optional, Union

from mmengine.dist import broadcast_object_list, get_rank
from mmengine.logging import print_log
from mmengine.runner import BaseLoop, loops
from mmengine.runner import Runner as MMRunner
from torch.utils.data import BatchSampler, DataLoader

from mmsoft.registry import LOOPS, RUNNERS

from .samples import OF_ITERATION, NamedSamples, NumberedBatches, set_random_states


class _Resumable:
    """What the loops have in common."""

    @staticmethod
    def build(runner: MMRunner, config: dict, endless: bool) -> DataLoader:
        """The loader of a config, with its samples in :class:`NumberedBatches`."""
        if not isinstance(config, dict):
            raise TypeError(f"mmsoft's training loops need train_dataloader as a dict; got {type(config).__name__}")
        config = dict(config)
        batches = config.get('batch_sampler') or dict(type=BatchSampler, drop_last=config.pop('drop_last', False))
        config['batch_sampler'] = dict(type=NumberedBatches, batches=batches, endless=endless)
        return Runner.build_dataloader(config, seed=runner.seed)

    def run(self) -> Any:
        """Trains, from where the checkpoint ended if there is one."""
        seed = [self.runner.seed]  # after resuming, the checkpoint's
        broadcast_object_list(seed)
        self.key = (*seed, OF_ITERATION, get_rank())
        self.batches: NumberedBatches = self.dataloader.batch_sampler
        self.batches.seed = self.batches.sampler.seed = seed[0]
        self.batches.first, self.batches.trained = self.iter, self._trained()
        return super().run()

    def run_iter(self, *args) -> None:
        """Trains on a batch."""
        set_random_states(*self.key, self.iter)
        super().run_iter(*args)


@LOOPS.register_module()
class EpochBasedTrainLoop(_Resumable, loops.EpochBasedTrainLoop):
    """mmengine's loop, resumed to the bit.

    Args:
        runner (Runner): The runner.
        dataloader (dict): Config of the loader.
        **kwargs: Those of mmengine's loop.

    Example:
        >>> train_cfg = dict(type='mmsoft.EpochBasedTrainLoop', max_epochs=12)
    """

    def __init__(self, runner: MMRunner, dataloader: dict, **kwargs) -> None:
        super().__init__(runner, self.build(runner, dataloader, endless=False), **kwargs)

    def run_epoch(self) -> None:
        """Trains for an epoch, or for the rest of an interrupted one."""
        self.batches.first = self.iter
        super().run_epoch()
        self.batches.trained = 0

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Trains on a batch."""
        super().run_iter(idx + self.batches.trained, data_batch)

    def _trained(self) -> int:
        whole = len(self.dataloader)
        trained = self.iter - self.epoch * whole
        if 0 <= trained <= whole:
            return trained
        print_log(
            f'An epoch has {whole} iterations, and had another number of them before the interruption; the '
            'interrupted epoch starts again.',
            'current',
            logging.WARNING,
        )
        return 0


@LOOPS.register_module()
class IterBasedTrainLoop(_Resumable, loops.IterBasedTrainLoop):
    """mmengine's loop, resumed to the bit and at once; see :class:`EpochBasedTrainLoop` for the arguments."""

    def __init__(self, runner: MMRunner, dataloader: dict, **kwargs) -> None:
        loader = self.build(runner, dataloader, endless=True)
        super().__init__(runner, _Resumed(loader), **kwargs)  # which starts no workers before we know where to begin
        self.dataloader = loader

    def run(self) -> Any:
        """Trains, from where the checkpoint ended if there is one."""
        self.dataloader_iterator = _Resumed(self.dataloader, self.iter)
        self.fast_forward_on_resume = False  # in onedl-mmengine, where True leaves the trained batches in
        return super().run()

    def _trained(self) -> int:
        return self.iter


class _Resumed:
    """A loader behind Nones for trained batches: mmengine draws and drops as many, onedl-mmengine skips them."""

    def __init__(self, loader: DataLoader, trained: int = 0) -> None:
        self.dataset = loader.dataset
        self.batches = chain(repeat(None, trained), loader)

    def __iter__(self) -> '_Resumed':
        return self

    def __next__(self) -> Any:
        return next(self.batches)

    def skip_iter(self, number: int) -> None:
        for _ in range(number):
            next(self)


@RUNNERS.register_module()
class Runner(MMRunner):
    """mmengine's runner with the loops of this module for mmengine's, and with :class:`NamedSamples` in all loaders.

    Example:
        >>> runner_type = 'mmsoft.Runner'
    """

    def build_train_loop(self, loop: Union[BaseLoop, dict]) -> BaseLoop:
        """See mmengine's runner."""
        if isinstance(loop, dict):
            loop = dict(loop)
            kind = loop.pop('type', None) or f'{"Epoch" if loop.pop("by_epoch") else "Iter"}BasedTrainLoop'
            loop['type'] = f'mmsoft.{kind}' if kind in ('EpochBasedTrainLoop', 'IterBasedTrainLoop') else kind
        return super().build_train_loop(loop)

    @staticmethod
    def build_dataloader(dataloader: Union[DataLoader, dict], seed: Optional[int] = None, **kwargs) -> DataLoader:
        """See mmengine's runner."""
        if isinstance(dataloader, dict):
            dataloader = dict(dataloader, dataset=dict(type=NamedSamples, dataset=dataloader['dataset']))
        return MMRunner.build_dataloader(dataloader, seed, **kwargs)
