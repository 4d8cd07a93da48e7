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
from .backbones import BACKBONES
from .report import write_report
from .rows import METHODS, ROWS, SHAPES, Run, runs, select, start
from .training import RESULT, losses

SAY_EVERY = 30  # seconds


def list_rows() -> None:
    """Prints a line for each row: its name, what it trains, and whether that is done."""
    for name, row in ROWS.items():
        method, networks = METHODS[row.ours.method], (BACKBONES[run.backbone].title for run in row.runs)
        print(f'{name:32} {method.title}: {" beside ".join(networks)}, {method.iterations} iterations')


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
    chosen = runs(select(names))
    root = str(ensure_shapes(Path(work_dir, 'shapes'), **SHAPES))
    failed = _Trainings({run: iterations or METHODS[run.method].iterations for run in chosen}, root, Path(work_dir),
                        jobs).run()
    results = {path.parent.name: json.loads(path.read_text()) for path in Path(work_dir).glob(f'*/{RESULT}')}
    print(f'{write_report(results, chance(root), Path(work_dir), Path(docs))} is written.', flush=True)
    if failed:
        raise UsageError(f'{len(failed)} of {len(chosen)} trainings failed; the last lines of '
                         f'{", ".join(str(Path(work_dir, run.name, "log.txt")) for run in failed)} say why.')


class _Trainings:
    """A queue of trainings and the processes that are at it."""

    def __init__(self, lengths: Dict[Run, int], root: str, work_dir: Path, jobs: int) -> None:
        self.lengths, self.root, self.work_dir, self.jobs = lengths, root, work_dir, jobs
        self.waiting: List[Run] = [run for run in lengths if not self._result(run).is_file()]
        self.running: Dict[Run, subprocess.Popen] = {}
        self.failed: List[Run] = []
        self.started, self.done_before = time.time(), self._done()

    def run(self) -> List[Run]:
        """Until all are done; returns those that failed."""
        said = 0.
        try:
            while self.waiting or self.running:
                for run in [run for run in self.waiting if start(run) not in (*self.waiting, *self.running)]:
                    if len(self.running) < self.jobs:
                        self.waiting.remove(run)
                        self._start(run)
                for run in [run for run, process in self.running.items() if process.poll() is not None]:
                    self._finish(run, self.running.pop(run).returncode)
                if time.time() - said > SAY_EVERY:
                    said = time.time()
                    self._say(', '.join(f'{run.name} {self._iteration(run)}/{self.lengths[run]}'
                                        for run in self.running))
                time.sleep(1)
        finally:
            for process in self.running.values():
                process.terminate()
        return self.failed

    def _start(self, run: Run) -> None:
        folder = self.work_dir / run.name
        folder.mkdir(parents=True, exist_ok=True)
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        command = [sys.executable, '-m', 'mmsoft.analysis.evidence.training', *run, self.root, str(folder)]
        command.append(str(self.lengths[run]))
        with open(folder / 'log.txt', 'a') as log:
            self.running[run] = subprocess.Popen(
                command, env=dict(os.environ, OMP_NUM_THREADS=threads), stdout=log, stderr=log)

    def _finish(self, run: Run, code: int) -> None:
        if code or not self._result(run).is_file():
            self.failed.append(run)
            return self._say(f'{run.name} failed')
        result = json.loads(self._result(run).read_text())
        scores = ', '.join(f'{name} {score:.3f}' for name, score in result['scores'].items())
        self._say(f'{run.name}: {scores}, {result["cpu_minutes"]:.1f} minutes of CPU')

    def _say(self, what: str) -> None:
        count = sum(self._result(run).is_file() for run in self.lengths)
        done, total = self._done(), sum(METHODS[run.method].cost * length for run, length in self.lengths.items())
        share = (done - self.done_before) / (time.time() - self.started)
        left = f'about {(total - done) / share / 60:.0f} minutes left' if share > 0 else 'no estimate yet'
        print(f'[{count} of {len(self.lengths)}, {left}] {what}', flush=True)

    def _done(self) -> float:
        """How many seconds of the work are behind us, by what an iteration costs."""
        return sum(METHODS[run.method].cost * self._iteration(run) for run in self.lengths)

    def _iteration(self, run: Run) -> int:
        if self._result(run).is_file():
            return self.lengths[run]
        return max((step for step, _ in losses(self.work_dir / run.name)), default=0)

    def _result(self, run: Run) -> Path:
        return self.work_dir / run.name / RESULT


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description='Trains every method and body of the zoo on generated shapes, beside a backbone of the host\'s own, '
        'and writes docs/evidence.md.',
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
