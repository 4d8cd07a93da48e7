"""Measures contenders, each in a process of its own, forked by a worker of their allocator.

    echo '{"cases": [["resnet50", 64, 64, false]]}' | python -m benchmarks.worker

prints for each line that it reads a JSON line for each case, the exit status of its process, and ``null``. What cannot
be measured, for lack of memory as an example, is a ``note``.
"""

import ctypes
import functools
import itertools
import json
import os
import re
import subprocess
import sys
import timeit
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Callable, NamedTuple

import torch
from mmengine.registry import MODELS
from torch import Tensor
from torch.utils.benchmark.utils.timer import timer

from .common import ROOT
from .contenders import build_contender, fold_norms

LONG = 0.3  # seconds that the runs of one measurement take together, at least
KEPT = str(2**32 - 1)
# glibc gives large blocks back to the system at once; each new one then costs page faults. Many deployments run with
# an allocator that keeps them, such as jemalloc or tcmalloc; these settings make glibc keep them, too.
ALLOCATORS: dict[str, dict[str, str]] = {
    'glibc': {},
    'keeps pages': dict(
        MALLOC_MMAP_MAX_='0', MALLOC_MMAP_THRESHOLD_=KEPT, MALLOC_TRIM_THRESHOLD_=KEPT, MALLOC_TOP_PAD_='500000000'
    ),
}


class Case(NamedTuple):
    """What to measure and how: a contender, rows and columns of the image, whether to run backward as well, and so on.

    ``dtype`` is the arithmetic: float32, tf32, bfloat16 or float16.
    """

    model: str
    height: int
    width: int
    backward: bool
    device: str = 'cpu'
    dtype: str = 'float32'
    compile: bool = False
    threads: int = 1
    batch: int = 1


def measure(case: Case) -> dict:
    """Runs a case: ``seconds`` of one run, and its peak ``memory``, see :func:`with_peak`."""
    torch.manual_seed(0)
    torch.set_num_threads(case.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = case.dtype == 'tf32'
    half = getattr(torch, case.dtype) if case.dtype in ('bfloat16', 'float16') else None
    network = build_contender(case.model)
    network.train(case.backward)  # which returns nothing in some libraries
    network = (network if case.backward else fold_norms(network)).to(case.device)
    forward = torch.compile(network, dynamic=False) if case.compile else network

    def step(image: Tensor) -> None:
        with torch.set_grad_enabled(case.backward), torch.autocast(case.device, half, enabled=half is not None):
            outs = forward(image)
        if case.backward:
            sum(out.float().mean() for out in outs).backward()
        network.zero_grad(set_to_none=True)

    image = torch.randn(case.batch, 3, case.height, case.width, device=case.device)
    # Compiling takes memory of its own; a graph for 64×64, too, would have dynamic sizes.
    step(image if case.compile else torch.zeros(case.batch, 3, 64, 64, device=case.device))
    # The run whose peak is measured begins without free pages; it is not timed.
    _, memory = with_peak(lambda: step(image), case.device)
    seconds = timeit.timeit(lambda: step(image), timer=timer, number=1)
    more = int(LONG / seconds)
    if more > 1:
        seconds = timeit.timeit(lambda: step(image), timer=timer, number=more) / more
    return dict(seconds=seconds, memory=memory)


def with_peak(run: Callable[[], Any], device: str = 'cpu') -> tuple[Any, float]:
    """What a call returns, and the most bytes that it has above those before it; NaN where they cannot be measured."""
    if device != 'cpu':
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        return run(), torch.cuda.max_memory_allocated() - before
    try:
        ctypes.CDLL('libc.so.6').malloc_trim(0)
        Path('/proc/self/clear_refs').write_text('5')
    except OSError:
        return run(), float('nan')
    before = _status('VmRSS')
    return run(), _status('VmHWM') - before


def _status(key: str) -> int:
    return 1024 * int(re.search(rf'{key}:\s+(\d+) kB', Path('/proc/self/status').read_text()).group(1))


def measure_all(cases: Sequence[Case], allocator: str, **environment: str) -> list[dict]:
    """``seconds``, ``memory`` and ``note`` of each case of one contender.

    If it ends for lack of memory, the benchmark goes on; an error of the code ends it. ``environment`` has variables of
    the process that measures.
    """
    worker = start_worker(allocator, **environment)
    print(json.dumps(dict(cases=cases)), file=worker.stdin, flush=True)
    *results, code = itertools.takewhile(lambda one: one is not None, map(json.loads, worker.stdout))
    if code > 0:
        raise RuntimeError(f'the worker of {cases[0].model} failed; its trace is above')
    results += [dict(note='ended by the system, which may be out of memory')] * (len(cases) - len(results))
    return [dict(dict(seconds=float('nan'), memory=None, note=''), **result) for result in results]


@functools.cache
def start_worker(allocator: str, **environment: str) -> subprocess.Popen:
    """A process that has imported everything, and measures each contender in a child of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(('MALLOC_', 'GOMP_', 'OMP_WAIT'))}
    env.update(ALLOCATORS[allocator], **environment)
    env['PYTHONPATH'] = os.pathsep.join([str(ROOT), env.get('PYTHONPATH', '')])
    command = [sys.executable, '-W', 'ignore', '-m', 'benchmarks.worker']
    return subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def answer(task: dict) -> None:
    """Measures the cases of a task."""
    sys.stdout = sys.stderr  # so that nothing else is printed between the answers
    for case in task['cases']:
        inductors = (AssertionError,) if Case(*case).compile else ()  # of strides
        try:
            result = measure(Case(*case))
        except (RuntimeError, MemoryError, *inductors) as error:
            result = dict(note=f'{type(error).__name__}: {error}'.splitlines()[0])
        print(json.dumps(result), file=sys.__stdout__, flush=True)


if __name__ == '__main__':
    MODELS.get('mmpretrain.XCiT'), MODELS.get('mmdet.ResNet')  # imports both libraries, once for all
    for line in sys.stdin:
        task = json.loads(line)
        how = 'fork' if Case(*task['cases'][0]).device == 'cpu' else 'spawn'  # CUDA does not survive a fork
        child = get_context(how).Process(target=answer, args=(task,))
        child.start()
        child.join()
        print(f'{child.exitcode}\nnull', flush=True)
