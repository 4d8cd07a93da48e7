"""Trains all rows, several at once, each in a process of its own, and goes on where it was stopped."""
import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from mmsoft.apis.cli import command_line
from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils import UsageError
from .chance import chance
from .report import write_report
from .rows import METHODS, ROWS, SHAPES, Run, runs, select, start
from .training import RESULT, losses

SAY_EVERY = 30  # seconds


def list_rows() -> None:
    """Prints a line for each row: its name and what it trains."""
    for name, row in ROWS.items():
        length = METHODS[row.ours.method].iterations
        print(f'{name:32} {row.title}: {" beside ".join(row.networks)}, {length} iterations')


def evidence(names: Sequence[str] = (), work_dir: str = 'work_dirs/evidence', docs: str = 'docs', jobs: int = 1,
             iterations: Optional[int] = None) -> None:
    """Trains and scores rows, ours and the host's, and writes the page of all that are done.

    What is done stays done, and what was interrupted goes on from its last checkpoint; to have a training anew, delete
    its folder in the work directory.

    Args:
        names: Rows, as :data:`ROWS` calls them; all if empty.
        work_dir: Where logs, checkpoints and results go.
        docs: Folder for ``evidence.md`` and its pictures.
        jobs: Trainings at a time, which share the cores.
        iterations: Length of every training instead of each method's own, to try the tool.

    Raises:
        UsageError: If there is no row of a name, or a training failed.
    """
    lengths = {run: iterations or METHODS[run.method].iterations for run in runs(select(names))}
    root = str(ensure_shapes(Path(work_dir, 'shapes'), **SHAPES))
    failed = _Trainings(lengths, root, Path(work_dir)).run(jobs)
    results = {path.parent.name: json.loads(path.read_text()) for path in Path(work_dir).glob(f'*/{RESULT}')}
    print(f'{write_report(results, chance(root), Path(work_dir), Path(docs))} is written.', flush=True)
    if failed:
        raise UsageError(f'{len(failed)} of {len(lengths)} trainings failed; the last lines of '
                         f'{", ".join(str(Path(work_dir, run.name, "log.txt")) for run in failed)} say why.')


class _Trainings:
    """Trainings, how long each takes in iterations, and how far they are."""

    def __init__(self, lengths: Dict[Run, int], root: str, work_dir: Path) -> None:
        self.lengths, self.root, self.work_dir = lengths, root, work_dir
        self.started, self.done_before = time.time(), self._seconds(done=True)

    def run(self, jobs: int) -> List[Run]:
        """Runs all that are not done, so many at a time; returns those that failed."""
        waiting = [run for run in self.lengths if not self._is_done(run)]
        running: Dict[Run, subprocess.Popen] = {}
        failed, said = [], 0.
        try:
            while waiting or running:
                ready = [run for run in waiting if start(run) not in (*waiting, *running)]
                for run in ready[:jobs - len(running)]:
                    waiting.remove(run)
                    running[run] = self._start(run, max(1, (os.cpu_count() or 1) // jobs))
                for run in [run for run, process in running.items() if process.poll() is not None]:
                    if running.pop(run).returncode or not self._is_done(run):
                        failed.append(run)
                        self._say(f'{run.name} failed')
                    else:
                        self._say(self._scores(run))
                if time.time() - said > SAY_EVERY:
                    said = time.time()
                    self._say(', '.join(f'{run.name} {self._iteration(run)}/{self.lengths[run]}' for run in running))
                time.sleep(1)
        finally:
            for process in running.values():
                process.terminate()
        return failed

    def _start(self, run: Run, threads: int) -> subprocess.Popen:
        folder = self.work_dir / run.name
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, '-m', 'benchmarks.evidence.training', *run, self.root, str(folder),
                   str(self.lengths[run])]
        with open(folder / 'log.txt', 'a') as log:
            return subprocess.Popen(command, env=dict(os.environ, OMP_NUM_THREADS=str(threads)), stdout=log, stderr=log)

    def _scores(self, run: Run) -> str:
        result = json.loads((self.work_dir / run.name / RESULT).read_text())
        scores = ', '.join(f'{name} {score:.3f}' for name, score in result['scores'].items())
        return f'{run.name}: {scores}, {result["cpu_minutes"]:.1f} minutes of CPU'

    def _say(self, what: str) -> None:
        done, total = self._seconds(done=True), self._seconds()
        speed = (done - self.done_before) / (time.time() - self.started)
        left = f'about {(total - done) / speed / 60:.0f} minutes left' if speed > 0 else 'no estimate yet'
        print(f'[{sum(map(self._is_done, self.lengths))} of {len(self.lengths)}, {left}] {what}', flush=True)

    def _seconds(self, done: bool = False) -> float:
        """How long all takes, or what is done has taken, by what an iteration costs."""
        return sum(METHODS[run.method].cost * (self._iteration(run) if done else length)
                   for run, length in self.lengths.items())

    def _iteration(self, run: Run) -> int:
        if self._is_done(run):
            return self.lengths[run]
        return max((step for step, _ in losses(self.work_dir / run.name)), default=0)

    def _is_done(self, run: Run) -> bool:
        return (self.work_dir / run.name / RESULT).is_file()


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description='Trains every method and body of the zoo on generated shapes, beside a backbone of the host\'s '
        'own, and writes docs/evidence.md.',
        epilog='Interrupted, the same command goes on.')
    parser.add_argument('names', nargs='*', metavar='ROW', help='only these rows')
    parser.add_argument('--list', action='store_true', help='print the rows and stop')
    parser.add_argument('--work-dir', default='work_dirs/evidence', help='default: %(default)s')
    parser.add_argument('--docs', default='docs', help='folder of the page (default: %(default)s)')
    parser.add_argument('--jobs', type=int, default=1, help='trainings at a time (default: %(default)s)')
    parser.add_argument('--iterations', type=int, help='length of every training, to try the tool')
    args = vars(parser.parse_args())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the trainings end, too
    run = list_rows if args.pop('list') else lambda: evidence(**args)
    return command_line(run, 'Interrupted; the same command goes on.')
