"""Two connected processes."""

from multiprocessing import get_context
from pathlib import Path
from typing import Any, Callable

import torch


def in_two_processes(folder: Path, work: Callable[[int], Any]) -> dict[int, Any]:
    """What ``work(rank)`` returns in each of two processes that gloo connects by a file in a folder, by their rank."""
    context = get_context('fork')
    results = context.Queue()

    def run(rank: int) -> None:
        torch.distributed.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
        results.put((rank, work(rank)))

    processes = [context.Process(target=run, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    return found
