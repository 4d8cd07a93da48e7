"""Trains rows, keeps what is done, and prints or publishes the tables: ``python -m benchmarks.evidence``."""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Optional

import torch

from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils import UsageError
from mmsoft.utils.cli import command_line

from ..common import ROOT
from . import store
from .far import Far
from .rows import select
from .scenes import SHAPES
from .training import done, train_row


def main(arguments: Optional[Sequence[str]] = None, docs: Path = ROOT / 'docs') -> None:
    """Runs the command line.

    What is done stays done until its row changes or its folder is deleted; detectors go on from their last checkpoint.

    Raises:
        UsageError: If there is no such row, or a training failed.
    """
    parser = argparse.ArgumentParser(
        description='Trains small networks where the score depends on attention, and scores them without it, too.',
        epilog='Interrupted, the same command goes on.',
    )
    add = parser.add_argument
    add('names', nargs='*', metavar='NAME', help='only these rows, or the rows of these tables')
    add('--list', action='store_true', help='print the rows and stop')
    add('--work-dir', type=Path, default=Path('work_dirs/evidence'), help='default: %(default)s')
    add('--seeds', type=int, default=3, help='number of seeds of each row (default: %(default)s)')
    add('--jobs', type=int, default=1, help='trainings at a time, which share the cores (default: %(default)s)')
    add('--publish', action='store_true', help='put the results into docs/data/evidence.json and the tables of docs/')
    args = parser.parse_args(arguments)
    rows = select(args.names)
    if args.list:
        print('\n'.join(f'{name:28} {row.title}' for name, row in rows.items()))
        return
    runs = [(name, seed) for name in rows for seed in range(args.seeds)]
    todo = [run for run in runs if not done(args.work_dir, *run)]
    print(f'{len(todo)} of {len(runs)} trainings to do', flush=True)
    if any(not isinstance(rows[name].task, Far) for name, _ in todo):
        ensure_shapes(args.work_dir / 'shapes', **SHAPES)
    failed = []
    threads = max(1, torch.get_num_threads() // args.jobs)
    with ProcessPoolExecutor(args.jobs, get_context('spawn'), torch.set_num_threads, (threads,)) as pool:
        trained = {pool.submit(train_row, args.work_dir, *run): '{}, seed {}'.format(*run) for run in todo}
        for future in as_completed(trained):
            print(f'{trained[future]}: {future.exception() or "done"}', flush=True)
            failed += [trained[future]] * bool(future.exception())
    results = [found for run in runs if (found := done(args.work_dir, *run))]
    for table in dict.fromkeys(row.table for row in rows.values()):
        print(store.table([name for name, row in rows.items() if row.table == table], results), '\n', flush=True)
    if args.publish:
        store.publish(docs, store.merge(store.load(docs), results))
    if failed:
        raise UsageError(f'{len(failed)} of {len(runs)} trainings failed: {"; ".join(failed)}.')


if __name__ == '__main__':
    raise SystemExit(command_line(main))
