"""Measures contenders, each in a process of its own; the environment chooses the allocator of all.

    echo '{"cases": [["resnet50", 64, 64, false]], "settings": ["cpu"], "with_memory": true}' \\
        | python -m benchmarks.worker

prints for each line that it reads a JSON line for each case, the exit status of its process, and ``null``. What cannot
be measured, for lack of memory as an example, is a ``note``.
"""

import ctypes
import json
import re
import sys
import timeit
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, Optional

import torch
from mmengine.registry import MODELS
from torch import Tensor
from torch.utils.benchmark.utils.timer import timer

from .contenders import build_contender, fold_norms

LONG = 0.3  # seconds that the runs of one measurement take together, at least


class Settings(NamedTuple):
    """How to measure: device, arithmetic (float32, tf32, bfloat16, float16), and so on."""

    device: str = 'cpu'
    dtype: str = 'float32'
    compile: bool = False
    threads: int = 1
    batch: int = 1


class Case(NamedTuple):
    """What to measure: contender, size of the image, and whether to run backward as well."""

    model: str
    height: int
    width: int
    backward: bool


def measure(case: Case, settings: Settings, with_memory: bool) -> dict:
    """Runs a case: ``seconds`` of one run, and peak ``memory`` in bytes above weights and image, or None."""
    torch.manual_seed(0)
    torch.set_num_threads(settings.threads)
    network = build_contender(case.model)
    network.train(case.backward)  # which returns nothing in some libraries
    network = (network if case.backward else fold_norms(network)).to(settings.device)
    forward = torch.compile(network) if settings.compile else network

    def step(image: Tensor) -> None:
        with torch.set_grad_enabled(case.backward), set_precision(settings.device, settings.dtype):
            outs = forward(image)
        if case.backward:
            sum(out.float().mean() for out in outs).backward()
        network.zero_grad(set_to_none=True)

    step(torch.zeros(settings.batch, 3, 64, 64, device=settings.device))
    image = torch.randn(settings.batch, 3, case.height, case.width, device=settings.device)
    memory = None
    if with_memory:  # in a run of its own: to measure it, all free pages are given back
        before = reset_peak(settings.device)
        step(image)
        memory = None if before is None else peak(settings.device) - before
    seconds = timeit.timeit(lambda: step(image), timer=timer, number=1)
    more = int(LONG / seconds)
    if more > 1:
        seconds = timeit.timeit(lambda: step(image), timer=timer, number=more) / more
    return dict(seconds=seconds, memory=memory)


def set_precision(device: str, dtype: str) -> torch.autocast:
    """Arithmetic by its name: float32, tf32, or autocast to bfloat16 or float16 in the context that is returned."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = dtype == 'tf32'
    half = getattr(torch, dtype) if dtype in ('bfloat16', 'float16') else None
    return torch.autocast(device, half, enabled=half is not None)


def reset_peak(device: str) -> Optional[int]:
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


def peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device != 'cpu' else _status('VmHWM')


def _status(key: str) -> int:
    return 1024 * int(re.search(rf'{key}:\s+(\d+) kB', Path('/proc/self/status').read_text()).group(1))


def answer(task: dict) -> None:
    """Measures the cases of a task."""
    sys.stdout = sys.stderr  # so that nothing else is printed between the answers
    for case in task['cases']:
        try:
            result = measure(Case(*case), Settings(*task['settings']), task['with_memory'])
        except (RuntimeError, MemoryError) as error:
            result = dict(note=f'{type(error).__name__}: {error}'.splitlines()[0])
        print(json.dumps(result), file=sys.__stdout__, flush=True)


if __name__ == '__main__':
    MODELS.get('mmpretrain.XCiT'), MODELS.get('mmdet.ResNet')  # imports both libraries, once for all
    for line in sys.stdin:
        task = json.loads(line)
        how = 'fork' if task['settings'][:1] == ['cpu'] else 'spawn'  # CUDA does not survive a fork
        child = get_context(how).Process(target=answer, args=(task,))
        child.start()
        child.join()
        print(f'{child.exitcode}\nnull', flush=True)
