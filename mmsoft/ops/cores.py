"""Independent problems side by side, one on each core of a processor."""
import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, List, Sequence, TypeVar

import torch

Problem = TypeVar('Problem')
Result = TypeVar('Result')


def side_by_side(solve: Callable[[Problem], Result], problems: Sequence[Problem]) -> List[Result]:
    """``[solve(problem) for problem in problems]``, several at a time, each without gradients.

    PyTorch's threads share the work of one operator and wait for each other before the next. Where a problem fits a
    core's cache, and on a machine that has other work to do, its operators are better off on one core.
    """
    if len(problems) == 1:
        return [solve(problems[0])]
    threads = torch.get_num_threads()
    workers = min(threads, len(problems))
    if workers == 1:
        return [solve(problem) for problem in problems]

    def solve_apart(problem: Problem) -> Result:
        with torch.no_grad():
            return solve(problem)

    try:
        results = _pool(os.getpid(), workers, threads // workers).map(solve_apart, problems)
    except RuntimeError:  # no more threads, or the interpreter is about to end
        return [solve_apart(problem) for problem in problems]
    return list(results)


@functools.lru_cache(maxsize=8)
def _pool(process: int, workers: int, threads: int) -> ThreadPoolExecutor:
    """Threads that stay, each for ``threads`` cores. A forked process has none of its parent's, so it is named."""
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, 'mmsoft', _share, (threads, ))
    everyone = threading.Barrier(workers)
    try:
        list(pool.map(lambda _: everyone.wait(), range(workers)))
    except BaseException:  # of those who wait, after Ctrl-C, the process could not end
        everyone.abort()
        raise
    finally:
        torch.set_num_threads(before)  # threads that are begun later take the number that anyone set last
    return pool


def _share(threads: int) -> None:
    torch.get_num_threads()  # a thread that is asked first takes everybody's number, and would forget its own
    torch.set_num_threads(threads)
