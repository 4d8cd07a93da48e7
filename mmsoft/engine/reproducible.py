"""Training whose iterations know their random states: what is resumed equals what was never interrupted, to the bit."""
import logging
from itertools import chain, count, islice, repeat
from typing import Any, Iterable, Iterator, List, Tuple

from mmengine.dist import broadcast_object_list, get_rank
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import Runner
from torch.utils.data import BatchSampler, DataLoader

from mmsoft.registry import HOOKS
from .samples import ReproducibleSamples, Samples, set_random_states

OF_MODEL, OF_SAMPLES = range(2)
LOADER_OPTIONS = ('num_workers', 'collate_fn', 'pin_memory', 'timeout', 'worker_init_fn', 'multiprocessing_context',
                  'generator', 'prefetch_factor', 'persistent_workers', 'pin_memory_device')


class _NumberedBatches:
    """The batches of another batch sampler with the numbers of their iterations.

    Args:
        batches: The other one.
        endless: Whether to go on after its end, with its sampler's next epoch.

    Attributes:
        first: Number of the first iteration.
        trained: How many batches to leave out in front.
    """

    def __init__(self, batches: BatchSampler, endless: bool) -> None:
        self.batches, self.endless = batches, endless
        self.sampler, self.batch_size = batches.sampler, batches.batch_size  # where mmengine looks for them
        self.first = self.trained = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Tuple[int, List[int]]]:
        batches = chain.from_iterable(map(self._epoch, count())) if self.endless else self.batches
        return zip(count(self.first), islice(batches, self.trained, None))

    def _epoch(self, epoch: int) -> Iterable[List[int]]:
        if hasattr(self.sampler, 'set_epoch'):
            self.sampler.set_epoch(epoch)
        return self.batches


class _Resumed:
    """A loader behind Nones for trained batches: mmengine draws these and leaves them, onedl-mmengine skips them."""

    def __init__(self, loader: DataLoader, trained: int) -> None:
        self.batches = chain(repeat(None, trained), loader)

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        return next(self.batches)

    def skip_iter(self, number: int) -> None:
        for _ in range(number):
            next(self)


@HOOKS.register_module()
class ReproducibleTrainingHook(Hook):
    """Makes the random states of each iteration, and of each sample, follow from the seed and their numbers alone.

    mmengine's checkpoints hold neither random states nor the place in the data: what is resumed sees other crops, drops
    other branches, begins a cut epoch anew, without a seed in the config shuffles anew, and in iteration-based training
    loads everything again that it was trained on. With this hook nothing of it needs to be held: training goes on at
    its sample, at once, with the states that it would have had. It equals the uninterrupted one, and a repeated one, to
    the bit, with any number of loaders' workers, as far as the device computes reproducibly (``randomness=dict(
    deterministic=True)`` on a GPU). The number of processes and batch size must stay.

    What is not kept: gradients that are being accumulated over several iterations when a checkpoint is written.

    Args:
        skip_broken (bool): Whether to warn of a sample that cannot be loaded and take another one for it. Defaults to
            False: training ends, and says which it is.

    Example:
        >>> custom_hooks = [dict(type='mmsoft.ReproducibleTrainingHook')]
    """

    priority = 'VERY_HIGH'

    def __init__(self, skip_broken: bool = False) -> None:
        self.skip_broken = skip_broken
        self.batches = None

    def before_train(self, runner: Runner) -> None:
        """Puts a loader in the place of the loop's, which begins where training goes on."""
        seed = [runner.seed]  # after resuming, that of the checkpoint, which the loop's samplers do not know
        broadcast_object_list(seed)
        self.key = (*seed, OF_MODEL, get_rank())
        loop = runner.train_loop
        old = loop.dataloader
        if old.batch_sampler is None:
            return
        endless = hasattr(loop, 'dataloader_iterator')
        self.batches = _NumberedBatches(_batch_sampler(runner, old, *seed), endless)
        self.batches.first = loop.iter
        self.batches.trained = loop.iter if endless else loop.iter - loop.epoch * len(old)
        if not endless and not 0 <= self.batches.trained <= len(old):
            print_log(f'An epoch has {len(old)} iterations, and had another number of them before it was interrupted; '
                      'the cut epoch begins anew.', 'current', logging.WARNING)
            self.batches.trained = 0
        old.dataset.__getitems__ = ReproducibleSamples(old.dataset, self.skip_broken, *seed, OF_SAMPLES)
        options = {name: getattr(old, name) for name in LOADER_OPTIONS}
        loop.dataloader = DataLoader(old.dataset, batch_sampler=self.batches, **options)
        if endless:
            loop.dataloader_iterator = _Resumed(loop.dataloader, loop.iter)
            loop.fast_forward_on_resume = False  # in onedl-mmengine, where it leaves the trained batches in
        elif self.batches.trained:
            run_iter, trained = loop.run_iter, self.batches.trained
            loop.run_iter = lambda index, batch: run_iter(index + trained, batch)

    def before_train_epoch(self, runner: Runner) -> None:
        """Tells the number of the epoch's first iteration."""
        if self.batches is not None:
            self.batches.first = runner.iter

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Sets the random states of the iteration."""
        set_random_states(*self.key, runner.iter)

    def after_train_epoch(self, runner: Runner) -> None:
        """The next epoch is a whole one."""
        if self.batches is not None:
            self.batches.trained = 0
        vars(runner.train_loop).pop('run_iter', None)

    def before_val(self, runner: Runner) -> None:
        """Has samples that cannot be loaded named in evaluation, too."""
        runner.val_dataloader.dataset.__getitems__ = Samples(runner.val_dataloader.dataset)

    def before_test(self, runner: Runner) -> None:
        """Has samples that cannot be loaded named in testing, too."""
        runner.test_dataloader.dataset.__getitems__ = Samples(runner.test_dataloader.dataset)


def _batch_sampler(runner: Runner, loader: DataLoader, seed: int) -> BatchSampler:
    """The loader's batch sampler made anew, with the seed, and nothing drawn from it yet."""
    cfg = runner.cfg.get('train_dataloader')
    if not isinstance(cfg, dict):
        return loader.batch_sampler
    sampler = DATA_SAMPLERS.build(dict(cfg['sampler']), default_args=dict(dataset=loader.dataset, seed=seed))
    if cfg.get('batch_sampler'):
        return DATA_SAMPLERS.build(
            dict(cfg['batch_sampler']), default_args=dict(sampler=sampler, batch_size=cfg['batch_size']))
    return BatchSampler(sampler, cfg['batch_size'], cfg.get('drop_last', False))
