"""Runs contenders side by side: one process for each, all in turn, so that what slows the machine slows them all."""
import ctypes
import itertools
import re
import timeit
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import pandas as pd
import torch
from mmcv.cnn import fuse_conv_bn
from rich.progress import Progress
from torch.utils.benchmark.utils.timer import timer

from .contenders import CONTENDERS, PICTURES, build_contender

Size = Tuple[int, int]


class Settings(NamedTuple):
    """How to measure: device, arithmetic (float32, tf32, bfloat16, float16), and so on."""
    device: str = 'cpu'
    dtype: str = 'float32'
    compile: bool = False
    threads: int = 1
    batch: int = 1


class Case(NamedTuple):
    """What to measure: keys of the contender, its weights and the picture, the picture's size, and the pass."""
    model: str
    weights: str
    picture: str
    height: int
    width: int
    backward: bool


def run_benchmark(models: Sequence[str],
                  sizes: Sequence[Size],
                  passes: Sequence[bool],
                  file: Path,
                  settings: Settings = Settings(),
                  rounds: int = 3,
                  patience: float = 30.,
                  checkpoint: Optional[str] = None) -> pd.DataFrame:
    """Measures each contender with all weights and pictures that might matter to it.

    Args:
        models (Sequence[str]): Keys of the contenders.
        sizes (Sequence[tuple[int, int]]): Rows and columns of the pictures.
        passes (Sequence[bool]): Whether to run backward as well, one entry a pass to measure.
        file (Path): CSV file, read first, and written whenever one size and pass has been measured. What it holds of
            a size and pass is not measured again.
        settings (Settings): Device, arithmetic and so on.
        rounds (int): Times that each case has its turn.
        patience (float): Seconds of one run beyond which there is no other, and none of larger pictures.
        checkpoint (str, optional): Further weights for those of SOFT that they fit.

    Returns:
        DataFrame: A row a run: the :class:`Case`, ``round``, ``seconds``, ``memory`` (peak bytes above weights and
        picture, where it is known), and a ``note`` if it failed.
    """
    tables = [pd.read_csv(file)] if file.exists() else []
    done = {group for table in tables for group in zip(table.height, table.width, table.backward)}
    groups = [(*size, backward) for size in sorted(sizes, key=_area) for backward in passes]
    groups = [group for group in groups if group not in done]
    workers, slow = Workers(settings), set()
    with workers, Progress() as progress:
        task = progress.add_task('', total=sum(map(_work, groups)))
        for group in groups:
            progress.update(task, description=f'{group[0]}×{group[1]}{" training" * group[2]}')
            cases = [
                Case(model, *condition, *group) for model in models
                for condition in CONTENDERS[model].conditions(checkpoint)
            ]
            rows = []
            for turn, case in itertools.product(range(rounds), cases):
                if _who(case) not in slow:
                    rows.append(dict(case._asdict(), round=turn, **workers.run(case)))
                    if not rows[-1]['seconds'] < patience:
                        slow.add(_who(case))
                progress.advance(task, _work(group) / rounds / len(cases))
            tables.append(pd.DataFrame(rows))
            file.parent.mkdir(parents=True, exist_ok=True)
            pd.concat(tables).to_csv(file, index=False)
    return pd.concat(tables, ignore_index=True)


class Workers:
    """A process for each contender: its memory is that of nothing else, and running out of it ends nothing else."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.context = get_context('forkserver')
        self.context.set_forkserver_preload([__name__, 'mmsoft.backbones', 'mmdet.models', 'mmpretrain.models'])
        self.pools: Dict[str, ProcessPoolExecutor] = {}

    def run(self, case: Case) -> dict:
        """Seconds, memory and note of one run."""
        if case.model not in self.pools:
            self.pools[case.model] = ProcessPoolExecutor(1, self.context)
        try:
            return self.pools[case.model].submit(measure, case, self.settings).result()
        except BrokenProcessPool:
            del self.pools[case.model]
            return dict(seconds=float('nan'), memory=None, note='ended, out of memory if the system ended it')
        except Exception as error:
            return dict(seconds=float('nan'), memory=None, note=f'{type(error).__name__}: {error}'.split('\n')[0])

    def __enter__(self) -> 'Workers':
        return self

    def __exit__(self, *_) -> None:
        for pool in self.pools.values():
            pool.shutdown()


def measure(case: Case, settings: Settings) -> dict:
    """Runs a case, warm: ``seconds`` of a run, peak ``memory`` in bytes or None, and an empty ``note``."""
    step, picture = _step(case.model, case.weights, case.backward, settings), _picture(case, settings)
    before = _reset_peak(settings.device)
    seconds = timeit.timeit(lambda: step(picture), timer=timer, number=1)
    memory = None if before is None else _peak(settings.device) - before
    more = int(0.3 / seconds)
    if more > 1:
        seconds = timeit.timeit(lambda: step(picture), timer=timer, number=more) / more
    return dict(seconds=seconds, memory=memory, note='')


@lru_cache(maxsize=None)
def _step(model: str, weights: str, backward: bool, settings: Settings) -> Callable:
    """A function that runs a contender once on a picture, and has done so on a small one."""
    torch.manual_seed(0)
    torch.set_num_threads(settings.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = settings.dtype == 'tf32'
    half = getattr(torch, settings.dtype) if settings.dtype in ('bfloat16', 'float16') else None
    network = build_contender(model, weights)
    network.train(backward)
    if not backward:
        network = fold_norms(network)
    network = network.to(settings.device)
    forward = torch.compile(network) if settings.compile else network

    def step(picture: torch.Tensor) -> None:
        with torch.set_grad_enabled(backward):
            with torch.autocast(settings.device, half, enabled=half is not None):
                outs = forward(picture)
            if backward:
                sum(out.float().mean() for out in outs).backward()
        network.zero_grad(set_to_none=True)

    step(torch.zeros(settings.batch, 3, 64, 64, device=settings.device))
    return step


@lru_cache(maxsize=2)
def _make_picture(name: str, batch: int, height: int, width: int, device: str) -> torch.Tensor:
    return PICTURES[name](batch, height, width).to(device)


def _picture(case: Case, settings: Settings) -> torch.Tensor:
    return _make_picture(case.picture, settings.batch, case.height, case.width, settings.device)


def fold_norms(network: torch.nn.Module) -> torch.nn.Module:
    """Folds each BatchNorm into the convolution before it, as for deployment."""
    parts = {type(module).__name__ for module in network.modules()}
    if 'LPI' not in parts:
        return fuse_conv_bn(network)
    if type(network).__name__ != 'LPI':  # mmpretrain's XCiT: mmcv would fold across the activation in it
        for name, child in network.named_children():
            setattr(network, name, fold_norms(child))
    return network


def _reset_peak(device: str) -> Optional[int]:
    """Resident bytes, which become the peak so far; None where they cannot be measured."""
    if device != 'cpu':
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    try:
        ctypes.CDLL('libc.so.6').malloc_trim(0)
        Path('/proc/self/clear_refs').write_text('5')
        return _status('VmRSS')
    except OSError:
        return None


def _peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device != 'cpu' else _status('VmHWM')


def _status(key: str) -> int:
    return 1024 * int(re.search(rf'{key}:\s+(\d+) kB', Path('/proc/self/status').read_text()).group(1))


def _who(case: Case) -> Tuple[str, str, str, bool]:
    return case.model, case.weights, case.picture, case.backward


def _area(size: Size) -> int:
    return size[0] * size[1]


def _work(group: Tuple[int, int, bool]) -> int:
    return _area(group) * (3 if group[2] else 1)
