"""Trains rows of small networks on the synthetic shapes data set, several at once: ``python -m benchmarks.evidence``.

``rows`` and ``networks`` say what is trained, ``recipe`` makes a config of it, ``training`` trains and scores one
network, and ``store`` keeps the results and makes the tables of the pages.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Optional

from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils import UsageError

from ..common import ROOT, commit
from .networks import NETWORKS
from .rows import METHODS, ROWS, SHAPES, Run, runs, select
from .store import Store
from .training import RESULT


def evidence(
    names: Sequence[str] = (),
    work_dir: str = 'work_dirs/evidence',
    seeds: Sequence[int] = (0,),
    jobs: int = 1,
    iterations: Optional[int] = None,
    publish: bool = False,
    docs: Path = ROOT / 'docs',
) -> None:
    """Trains and scores rows, and prints their table.

    What is done stays done, and what was interrupted goes on from its last checkpoint. To train a network again, delete
    its folder in the work directory.

    Args:
        names: Rows, see :data:`ROWS`; all if empty.
        work_dir: Folder for logs, checkpoints and results. Nothing else is written unless ``publish``.
        seeds: Of each row.
        jobs: Number of trainings at a time, which share the cores.
        iterations: Length of every training instead of each method's own, to try the command.
        publish: Whether to put the results into ``docs/data/evidence.json`` and the tables of the pages.
        docs: Folder of the pages.

    Raises:
        UsageError: If there is no row of a name, a training failed, or trials are to be published.
    """
    rows = select(names)
    if publish and iterations:
        raise UsageError('Results of --iterations are trials, which are not published; leave out one of the two.')
    lengths = {run: iterations or METHODS[run.method].iterations for seed in seeds for run in runs(rows, seed)}
    root = str(ensure_shapes(Path(work_dir, 'shapes'), **SHAPES))
    failed = train_all(lengths, root, Path(work_dir), jobs)
    found = [json.loads(_result(work_dir, run).read_text()) for run in lengths if run not in failed]
    results = Store(found)
    print(results.table(rows), flush=True)
    others = sorted({one['commit'] for one in found} - {commit()})
    if others:
        print(f'Some results are of another commit: {", ".join(others)}.')
    if publish:
        Store.load(docs).merge(results).publish(docs)
    if failed:
        logs = ', '.join(str(Path(work_dir, run.name, 'log.txt')) for run in failed)
        raise UsageError(f'{len(failed)} of {len(lengths)} trainings failed; the last lines of {logs} say why.')


def train_all(lengths: dict[Run, int], root: str, work_dir: Path, jobs: int) -> list[Run]:
    """Trains what is not done, each in a process of its own, so many at a time; returns what failed.

    Args:
        lengths: Iterations of each training.
        root: Folder of the synthetic shapes.
        work_dir: Folder of the trainings' folders.
        jobs: Number of processes.
    """
    env = dict(
        os.environ,
        OMP_NUM_THREADS=str(max(1, (os.cpu_count() or 1) // jobs)),
        PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')]),
    )

    def train(run: Run) -> None:
        folder = work_dir / run.name
        folder.mkdir(parents=True, exist_ok=True)
        arguments = [run.method, run.backbone, str(run.seed), root, str(folder), str(lengths[run])]
        with open(folder / 'log.txt', 'a') as log:
            subprocess.run(
                [sys.executable, '-m', 'benchmarks.evidence.training', *arguments], env=env, stdout=log, stderr=log
            )
        print(f'{run.name} {"is done" if _result(work_dir, run).is_file() else "failed"}', flush=True)

    todo = [run for run in lengths if not _result(work_dir, run).is_file()]
    print(f'{len(todo)} of {len(lengths)} trainings to do', flush=True)
    pool = ThreadPoolExecutor(jobs)
    try:
        list(pool.map(train, [run for run in todo if not run.start]))
        list(pool.map(train, [run for run in todo if run.start and _result(work_dir, run.start).is_file()]))
    finally:
        pool.shutdown(cancel_futures=True)
    return [run for run in todo if not _result(work_dir, run).is_file()]


def _result(work_dir: Path, run: Run) -> Path:
    return Path(work_dir, run.name, RESULT)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description='Trains small networks of every method and architecture on the synthetic shapes data set, beside '
        'backbones of the OpenMMLab libraries, and scores them with and without their attention.',
        epilog='Interrupted, the same command goes on.',
    )
    add = parser.add_argument
    add('names', nargs='*', metavar='ROW', help='only these rows')
    add('--list', action='store_true', help='print the rows and stop')
    add('--work-dir', default='work_dirs/evidence', help='folder of all that is written (default: %(default)s)')
    add('--seeds', type=int, nargs='+', default=[0], help='seeds of each row (default: 0)')
    add('--jobs', type=int, default=1, help='trainings at a time (default: %(default)s)')
    add('--iterations', type=int, help='length of every training, to try the command')
    add('--publish', action='store_true', help='put the results into docs/data/evidence.json and the tables of docs/')
    args = vars(parser.parse_args(arguments))
    if not args.pop('list'):
        return evidence(**args)
    for name, row in ROWS.items():
        titles = ' beside '.join(NETWORKS[run.backbone].title for run in row.runs())
        print(f'{name:32} {METHODS[row.method].title}: {titles}, {METHODS[row.method].iterations} iterations')
