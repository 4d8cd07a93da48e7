"""One process for one measurement: memory is that of nothing else, and running out of it ends nothing else."""
import ctypes
import multiprocessing
import re
import time
from pathlib import Path
from typing import Callable, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.utils.benchmark import Timer

from .contenders import ENTRANTS, build_contender
from .flops import INVERSE, count_flops
from .parity_weights import parity_images

DTYPES = ('float32', 'tf32', 'bfloat16', 'float16')
_FORKSERVER = 'forkserver' in multiprocessing.get_all_start_methods()
_CONTEXT = multiprocessing.get_context('forkserver' if _FORKSERVER else 'spawn')


class Case(NamedTuple):
    """What is measured: a key of the contenders, the image, and whether the backward pass belongs to it."""
    model: str
    size: Tuple[int, int]
    backward: bool


class Settings(NamedTuple):
    """How it is measured."""
    device: str = 'cpu'
    dtype: str = 'float32'
    compile: bool = False
    threads: int = 1
    batch: int = 1


class FirstRun(NamedTuple):
    """Seconds of the first run at full size, peak bytes above what was resident before, multiply-accumulates."""
    seconds: float
    memory: Optional[int]
    flops: Optional[float]


class MeasurementError(Exception):
    """A measurement failed, and its message says why in a few words."""


class Worker:
    """A process that holds one contender and runs it when asked.

    Args:
        case (Case): What to measure.
        settings (Settings): How to measure it.
    """

    def __init__(self, case: Case, settings: Settings) -> None:
        self._pipe, other = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(other, case, settings), daemon=True)
        self._process.start()
        other.close()

    def first_run(self) -> FirstRun:
        """Waits for the process to have run once; the next answers are times."""
        return self._receive()

    def seconds(self) -> float:
        """Seconds of one run."""
        try:
            self._pipe.send(True)
        except BrokenPipeError:
            pass  # what is left in the pipe, or its end, says why
        return self._receive()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _receive(self):
        try:
            answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            raise MeasurementError(f'ended with code {self._process.exitcode}, out of memory if -9') from None
        if isinstance(answer, str):
            raise MeasurementError(answer)
        return answer


def preload(models: Sequence[str]) -> None:
    """Imports the contenders' libraries once for all workers to come, in a process that never computes."""
    if _FORKSERVER:
        scopes = {ENTRANTS[model].backbone['type'].split('.')[0] for model in models}
        libraries = ['mmsoft.backbones' if scope == 'mmsoft' else f'{scope}.models' for scope in sorted(scopes)]
        _CONTEXT.set_forkserver_preload([__name__, *libraries])


def _serve(pipe, case: Case, settings: Settings) -> None:
    try:
        _be_the_first_to_go()
        step, flops = _prepare(case, settings)
        before = _reset_peak(settings.device)
        seconds = _time(step, 1, settings.device)
        memory = _peak(settings.device) - before if before is not None else None
        pipe.send(FirstRun(seconds, memory, flops()))
        runs = max(1, int(0.3 / max(seconds, 1e-4)))
        while pipe.recv():
            pipe.send(_time(step, runs, settings.device))
    except Exception as error:
        pipe.send(f'{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ""}')


def _prepare(case: Case, settings: Settings) -> Tuple[Callable[[], None], Callable[[], Optional[float]]]:
    """A function that runs the case once, and one that counts its multiply-accumulates on a GPU."""
    device = settings.device
    torch.set_num_threads(settings.threads)
    for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
        backend.allow_tf32 = settings.dtype == 'tf32'
    torch.manual_seed(0)
    model = build_contender(ENTRANTS[case.model]).to(device)
    model.train(case.backward)
    forward = torch.compile(model) if settings.compile else model
    images = parity_images(settings.batch, *case.size).to(device)
    half = getattr(torch, settings.dtype) if settings.dtype in ('bfloat16', 'float16') else None

    def run(images):
        with torch.set_grad_enabled(case.backward):
            with torch.autocast(device, half, enabled=half is not None):
                outs = forward(images)
            if case.backward:
                sum(out.float().mean() for out in outs).backward()
        model.zero_grad(set_to_none=True)

    def flops():
        if device == 'cpu' or case.backward:
            return None
        counts = count_flops(model, images)
        return sum(counts.values()) - counts[INVERSE]

    # What a process allocates once, whatever the image: threads, kernels, the compiled network.
    run(images if settings.compile else images[..., :64, :64].contiguous())
    return lambda: run(images), flops


def _time(step: Callable[[], None], runs: int, device: str) -> float:
    """Seconds of a run; PyTorch's own timer would run twice more to warm up."""
    synchronize = torch.cuda.synchronize if device != 'cpu' else lambda: None
    synchronize()
    start = time.perf_counter()
    for _ in range(runs):
        step()
    synchronize()
    return (time.perf_counter() - start) / runs


def _reset_peak(device: str) -> Optional[int]:
    """Resident bytes, which become the peak so far; None where they cannot be measured."""
    if device != 'cpu':
        torch.cuda.synchronize()
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


def _be_the_first_to_go() -> None:
    """Where memory runs out, Linux ends this process before any other."""
    try:
        Path('/proc/self/oom_score_adj').write_text('1000')
    except OSError:
        pass


def matrix_rate(settings: Settings) -> float:
    """Multiply-accumulates a second of a large matrix product, which no network exceeds."""
    dtype = getattr(torch, settings.dtype) if settings.dtype in ('bfloat16', 'float16') else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = settings.dtype == 'tf32'
    side = 1024 if settings.device == 'cpu' else 8192
    a = torch.randn(side, side, device=settings.device, dtype=dtype)
    timer = Timer('a @ a', globals=dict(a=a), num_threads=settings.threads)
    return side**3 / timer.blocked_autorange(min_run_time=0.5).median
