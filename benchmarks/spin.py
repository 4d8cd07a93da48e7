"""What OpenMP threads that wait cost beside another process: a table of docs/benchmark_method.md.

    python -m benchmarks.spin --publish

Threads spin before they sleep, and can take the core of the thread that they wait for. ``GOMP_SPINCOUNT`` shortens it.
"""

import argparse
import itertools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Optional

import pandas as pd
import torch

from mmsoft.utils.cli import command_line

from .common import ROOT, commit, finish, markdown, processor
from .contenders import check_contender
from .speed import positive, size
from .worker import Case, measure_all

COUNTS = ('', '3000', '1000')  # the first one is the default


def measure(sides: Sequence[tuple[int, int]], rounds: int, model: str) -> Iterator[dict[str, Any]]:
    """Yields the seconds of a forward pass with torch's number of threads, alone and beside a busy process."""
    cases = [Case(model, *side, False, threads=torch.get_num_threads()) for side in sides]
    for index, busy, count in itertools.product(range(rounds), (False, True), COUNTS):
        with ExitStack() as others:
            if busy:
                other = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
                others.callback(other.wait)
                others.callback(other.kill)
            results = measure_all(cases, 'glibc', **({'GOMP_SPINCOUNT': count} if count else {}))
        for case, result in zip(cases, results):
            key = dict(busy=busy, count=count or 'default', height=case.height, width=case.width)
            yield dict(key, round=index, seconds=result['seconds'], machine=processor(), commit=commit())


def text(table: pd.DataFrame) -> str:
    """Markdown: milliseconds, medians over rounds, and their ratio to the default's alone."""
    shapes = list(dict.fromkeys(zip(table.height, table.width)))
    medians = table.groupby(['busy', 'count', 'height', 'width']).seconds.median()
    rows = []
    for busy, count in dict.fromkeys(zip(table.busy, table['count'])):
        cells = []
        for shape in shapes:
            seconds = medians[(busy, count, *shape)]
            cells.append(f'{1000 * seconds:.0f} ({seconds / medians[(False, "default", *shape)]:.1f} ×)')
        rows.append((f'{"beside a busy process" if busy else "alone"}, {count}', *cells))
    return markdown(
        rows, ('ms', *(f'{height}²' if height == width else f'{height}×{width}' for height, width in shapes))
    )


def main(arguments: Optional[Sequence[str]] = None, docs: Path = ROOT / 'docs') -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', default='soft_norm_small', help='contender (default: %(default)s)')
    parser.add_argument('--sizes', type=size, nargs='+', default=[(224, 224), (512, 512)], help='default: 224 512')
    parser.add_argument('--rounds', type=positive, default=5, help='default: %(default)s')
    parser.add_argument('--publish', action='store_true', help='write docs/data and the page')
    args = parser.parse_args(arguments)
    check_contender(args.model)
    table = pd.DataFrame(measure(args.sizes, args.rounds, args.model))
    finish('spin', table, text(table), docs if args.publish else None)


if __name__ == '__main__':
    raise SystemExit(command_line(main))
