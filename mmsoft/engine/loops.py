"""Training loops with reproducible random states: a resumed training equals an uninterrupted one.

The random states of each iteration and sample follow from the seed and their numbers, and training resumes at the next
sample. Results are equal bit by bit, with any number of workers, if the device computes reproducibly (on a GPU, with
``randomness=dict(deterministic=True)``), and if the number of processes and the batch size stay the same.
"""

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any, Optional, Union

from mmengine.dist import broadcast, broadcast_object_list, get_rank
from mmengine.logging import MMLogger
from mmengine.runner import BaseLoop, loops
from mmengine.runner import Runner as MMRunner
from torch.utils.data import BatchSampler, DataLoader

from mmsoft.registry import LOOPS, RUNNERS
from mmsoft.utils.config import explained

from .samples import NamedSamples, NumberedBatches, check_labels, set_random_states

REPLACED = ('EpochBasedTrainLoop', 'IterBasedTrainLoop')
PLACES = ('', 'mmengine.runner.', 'mmengine.runner.loops.')  # prefixes of names; dumped configs have the last two
OURS = {kind: f'mmsoft.{one}' for one in REPLACED for kind in (getattr(loops, one), *(at + one for at in PLACES))}


class _Resumable:
    """Common part of the loops: a loader of :class:`NumberedBatches`, ``endless`` if epochs do not count."""

    endless = False

    def __init__(self, runner: MMRunner, dataloader: dict, **kwargs) -> None:
        config = dict(dataloader)
        batches = config.get('batch_sampler') or dict(type=BatchSampler, drop_last=config.pop('drop_last', False))
        config['batch_sampler'] = dict(type=NumberedBatches, batches=batches, endless=self.endless)
        loader = Runner.build_dataloader(config, seed=runner.seed)
        vars(loader)['batch_size'] = loader.batch_sampler.batch_size  # for hooks; with a batch sampler, torch sets None
        # mmengine's endless loop would start the loader's workers now, before it is known where to begin.
        super().__init__(runner, _Batches((), loader) if self.endless else loader, **kwargs)
        self.dataloader = loader

    def run(self) -> Any:
        """Trains, from where the checkpoint ended if there is one."""
        seed = [self.runner.seed]  # after resuming, the checkpoint's
        broadcast_object_list(seed)
        self.batches: NumberedBatches = self.dataloader.batch_sampler
        self.batches.seed = self.batches.sampler.seed = seed[0]
        self.batches.begin, self.batches.first = 0 if self.endless else self.epoch_begin(), self.iter
        if self.endless:
            self.dataloader_iterator = _Batches(repeat(None, self.iter), self.dataloader)
        else:  # before resuming, epochs may have had another number of iterations
            self._max_iters = self.batches.begin + (self.max_epochs - self.epoch) * len(self.dataloader)
        return super().run()

    def run_iter(self, *args) -> None:
        """Trains on a batch."""
        self.batches.first = self.batches.begin  # for hooks that iterate over the loader
        set_random_states(self.batches.seed, 0, get_rank(), self.iter)
        try:
            super().run_iter(*args)
        except (AssertionError, IndexError, RuntimeError):  # raised by a loss, which names no file
            check_labels(args[-1], self.runner.model)
            raise


@LOOPS.register_module()
class EpochBasedTrainLoop(_Resumable, loops.EpochBasedTrainLoop):
    """mmengine's loop with the same arguments; resumes bit-exactly. Its type is ``'mmsoft.EpochBasedTrainLoop'``."""

    def run_epoch(self) -> None:
        """Trains for an epoch, or for the rest of an interrupted one."""
        self.batches.first, self.skipped = self.iter, self.iter - self.batches.begin
        self.runner.message_hub.update_info('epoch_begin', [self.epoch, self.batches.begin, len(self.dataloader)])
        super().run_epoch()
        self.batches.begin = self.iter

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Trains on a batch."""
        super().run_iter(idx + self.skipped, data_batch)

    def epoch_begin(self) -> int:
        """The first iteration of this epoch; the next iteration if the number of batches per epoch has changed."""
        size = len(self.dataloader)
        epoch, begin, size_then = self.runner.message_hub.get_info('epoch_begin', [self.epoch, self.epoch * size, size])
        is_same = (epoch, size_then) == (self.epoch, size) and begin <= self.iter <= begin + size
        return begin if is_same else self.iter


@LOOPS.register_module()
class IterBasedTrainLoop(_Resumable, loops.IterBasedTrainLoop):
    """mmengine's loop with the same arguments; resumes bit-exactly without loading trained batches again."""

    endless = True


class _Batches(chain):
    """Nones for trained batches, then a loader's batches: mmengine draws the Nones, onedl-mmengine skips them."""

    def __init__(self, trained: Iterable[None], loader: DataLoader) -> None:
        self.dataset = loader.dataset

    def skip_iter(self, number: int) -> None:
        for _ in range(number):
            next(self)


@RUNNERS.register_module()
class Runner(MMRunner):
    """mmengine's runner with the loops of this module, and with :class:`NamedSamples` in all loaders.

    Environment, config and the order of hooks, some hundred lines, go to the log file but not to the console. Choose it
    in a config by ``runner_type = 'mmsoft.Runner'``.
    """

    def build_logger(self, *args, **kwargs) -> MMLogger:
        """See mmengine's runner."""
        logger = super().build_logger(*args, **kwargs)  # its first handler is the console's
        logger.handlers[0].addFilter(lambda record: record.module != 'runner' or '\n' not in record.getMessage())
        logger.info(f'Environment, config and order of hooks are in {logger.log_file}.')
        return logger

    def build_train_loop(self, loop: Union[BaseLoop, dict]) -> BaseLoop:
        """See mmengine's runner. ``'mmengine.EpochBasedTrainLoop'`` chooses mmengine's."""
        if isinstance(loop, dict) and isinstance(self._train_dataloader, dict):  # then samples get keys
            loop = dict(loop)
            kind = loop.pop('type', None) or f'{"Epoch" if loop.pop("by_epoch") else "Iter"}BasedTrainLoop'
            loop['type'] = OURS.get(kind, kind)
        return super().build_train_loop(loop)

    def build_param_scheduler(self, scheduler: Any) -> Any:
        """See mmengine's runner; UsageError if it cannot be built."""
        with explained('param_scheduler', done='built'):
            return super().build_param_scheduler(scheduler)

    def call_hook(self, fn_name: str, **kwargs) -> None:
        """See mmengine's runner; BrokenSample if test labels do not fit. All ranks validate with rank 0's buffers."""
        if fn_name in ('before_val_iter', 'before_test_iter'):
            check_labels(kwargs['data_batch'], self.model)
        super().call_hook(fn_name, **kwargs)
        for buffer in self.model.buffers() if fn_name == 'before_val_epoch' else ():  # after EMAHook
            broadcast(buffer)

    @staticmethod
    def build_dataloader(dataloader: Union[DataLoader, dict], seed: Optional[int] = None, **kwargs) -> DataLoader:
        """See mmengine's runner."""
        if isinstance(dataloader, dict):
            dataloader = dict(dataloader, dataset=dict(type=NamedSamples, dataset=dataloader['dataset']))
        return MMRunner.build_dataloader(dataloader, seed, **kwargs)
