"""``python -m benchmarks.evidence``: trains rows, keeps what is done, and prints or publishes the tables."""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Optional

import torch

from mmsoft.apis.cli import command_line
from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils import UsageError

from ..common import ROOT
from . import store
from .far import Far
from .rows import SHAPES, select
from .training import done, train_row


def evidence(
    names: Sequence[str] = (),
    work_dir: str = 'work_dirs/evidence',
    seeds: int = 3,
    jobs: int = 1,
    publish: bool = False,
    docs: Path = ROOT / 'docs',
) -> None:
    """Trains rows and prints their tables.

    What is done stays done until its row changes or its folder is deleted; detectors go on from their last checkpoint.

    Args:
        names: Rows and tables, see :func:`benchmarks.evidence.rows.select`; all if empty.
        work_dir: Folder for results, logs and checkpoints. Nothing else is written unless ``publish``.
        seeds: Number of seeds of each row.
        jobs: Number of trainings at a time, which share the cores.
        publish: Whether to put the results into the store and the tables of the pages.
        docs: Folder of the pages.

    Raises:
        UsageError: If there is no row of a name, or a training failed.
    """
    rows, folder = select(names), Path(work_dir)
    runs = [(name, seed) for name in rows for seed in range(seeds)]
    todo = [run for run in runs if not done(folder, *run)]
    print(f'{len(todo)} of {len(runs)} trainings to do', flush=True)
    if any(not isinstance(rows[name].task, Far) for name, _ in todo):
        ensure_shapes(folder / 'shapes', **SHAPES)
    failed = []
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(jobs, get_context('spawn'), torch.set_num_threads, (threads,)) as pool:
        trained = {pool.submit(train_row, folder, *run): '{}, seed {}'.format(*run) for run in todo}
        for future in as_completed(trained):
            print(f'{trained[future]}: {future.exception() or "done"}', flush=True)
            failed += [trained[future]] * bool(future.exception())
    results = [found for run in runs if (found := done(folder, *run))]
    for table in dict.fromkeys(row.table for row in rows.values()):
        print(store.table([name for name, row in rows.items() if row.table == table], results), '\n', flush=True)
    if publish:
        store.publish(docs, store.merge(store.load(docs), results))
    if failed:
        raise UsageError(f'{len(failed)} of {len(runs)} trainings failed: {"; ".join(failed)}.')


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description='Trains small networks where the score depends on attention, and scores them without it, too.',
        epilog='Interrupted, the same command goes on.',
    )
    add = parser.add_argument
    add('names', nargs='*', metavar='NAME', help='only these rows, or the rows of these tables')
    add('--list', action='store_true', help='print the rows and stop')
    add('--work-dir', default='work_dirs/evidence', help='folder of all that is written (default: %(default)s)')
    add('--seeds', type=int, default=3, help='number of seeds of each row (default: %(default)s)')
    add('--jobs', type=int, default=1, help='trainings at a time (default: %(default)s)')
    add('--publish', action='store_true', help='put the results into docs/data/evidence.json and the tables of docs/')
    args = vars(parser.parse_args(arguments))
    if not args.pop('list'):
        return evidence(**args)
    for name, row in select(args['names']).items():
        print(f'{name:28} {row.title}')


if __name__ == '__main__':
    raise SystemExit(command_line(main))
