"""Measures contenders side by side in turn, with both allocators: ``python -m benchmarks.speed``."""

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import pandas as pd
import torch

from mmsoft.utils import UsageError
from mmsoft.utils.cli import command_line

from .common import ROOT, code_version, processor, read_table, write_table
from .contenders import ABLATIONS, CONTENDERS, check_contender
from .speed_report import publish, report
from .targets import GAIN, LIMITED, RECOMPUTED
from .worker import ALLOCATORS, Case, measure_all

Size = tuple[int, int]
SIZES: list[Size] = [(224, 224), (512, 512), (800, 1344)]
PATIENCE = 30.0  # seconds of a run after which a case has no further turn
# Whatever decides what a run measures; a run with all of them equal is not repeated, and no other is reported.
KEY = [*Case._fields, 'allocator', 'code', 'machine', 'torch', 'round']


def run_benchmark(cases: Sequence[Case], file: Path, rounds: int = 5, until: float = float('inf')) -> pd.DataFrame:
    """Measures each contender in turn, with both allocators on a CPU.

    Args:
        cases (Sequence[Case]): What to measure.
        file (Path): CSV file. A run that it holds under the same :data:`KEY` is not repeated; new ones are appended as
            they are made.
        rounds (int): In each of them every case has one turn; in the first alone, if it is compiled.
        until (float): Time (:func:`time.time`) after which nothing more is measured.

    Returns:
        DataFrame: The runs that were asked for: :data:`KEY`, ``commit``, ``seconds``, ``memory`` (peak bytes above
        weights and image), and a ``note`` if it failed.

    Raises:
        UsageError: If the device cannot do what is asked for, or the file is of another version.
    """
    check_device(cases)
    known = read_table(file) if file.exists() else pd.DataFrame(columns=KEY)
    if not {*KEY} <= {*known.columns}:
        raise UsageError(f'{file} is of an older version of this command; move it away or choose another --out-dir.')
    done = {_key(row): row for row in known.to_dict('records')}
    (code, commit), found = code_version(), []
    common = dict(code=code, machine=processor(cases[0].device), torch=torch.__version__)
    allocators = ALLOCATORS if cases[0].device == 'cpu' else ['glibc']
    processes: dict[Case, list[Case]] = {}
    for case in cases:
        # Compiling takes minutes: of each graph, results are written at once, and one round is enough.
        shared = case if case.compile else case._replace(height=0, width=0, backward=False)
        processes.setdefault(shared, []).append(case)
    for turn, process, allocator in itertools.product(range(rounds), processes.values(), allocators):
        rows = [dict(case._asdict(), allocator=allocator, **common, round=turn) for case in sorted(process)]
        new = [
            row
            for row in rows
            if _key(row) not in done
            and (turn == 0 or done.get(_key(dict(row, round=turn - 1)), {}).get('seconds', PATIENCE) < PATIENCE)
            and not (turn and row['compile'])
            and time.time() < until
        ]
        if new:
            some = [Case(*(row[name] for name in Case._fields)) for row in new]
            results = measure_all(some, allocator)
            done.update({_key(row): dict(row, commit=commit, **result) for row, result in zip(new, results)})
            print(f'round {turn + 1}, {process[0].model}, {allocator}', file=sys.stderr)
            write_table(pd.DataFrame(done.values()), file)
        found += [done[_key(row)] for row in rows if _key(row) in done]
    return pd.DataFrame(found, columns=None if found else [*KEY, 'commit', 'seconds', 'memory', 'note'])


def _key(run: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(run[name]) for name in KEY)


def check_device(cases: Sequence[Case]) -> None:
    """Raises UsageError if there is no such device here or it has no such arithmetic."""
    for case in cases:
        if case.device == 'cuda' and not torch.cuda.is_available():
            raise UsageError('--device cuda needs a GPU that PyTorch can use, and finds none; take --device cpu.')
        if case.device == 'cpu' and case.dtype in ('tf32', 'float16'):
            raise UsageError(f'--dtype {case.dtype} needs a GPU; a CPU takes float32 and bfloat16.')


def size(text: str) -> Size:
    """``'512'`` or ``'800x1344'`` as rows and columns."""
    rows, _, columns = text.partition('x')
    return int(rows), int(columns or rows)


def positive(text: str) -> int:
    """A number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is no whole number of at least 1')
    return int(text)


def plan() -> list[Case]:
    """What is measured for the published page."""
    full = [f'soft_{kind}{size}' for size in ('tiny', 'small') for kind in ('norm_', '')]
    others = ['sima_xcit_small', 'xcit_small', 'pvt_tiny', 'pvt_small', 'swin_tiny', 'resnet50']
    trained = [f'soft_norm_{size}{end}' for size in ('tiny', 'small') for end in ('', '_100')]
    trained += [name for name in others if name != 'xcit_small']
    half = ('soft_norm_small_100', 'sima_xcit_small', 'pvt_small', 'swin_tiny')
    return [
        *(Case(name, *one, False) for name in [*LIMITED, *others, *full] for one in SIZES),
        *(Case(name, *one, True) for name in trained for one in SIZES),
        *(Case(name + GAIN, *SIZES[-1], False) for name in LIMITED),
        *(Case(name + RECOMPUTED, *SIZES[-1], True) for name in LIMITED if name.endswith('_100')),
        *(Case('soft_norm_small_100', side, side, False) for side in (1024, 1536, 2048)),
        *(Case(name, 224, 224, backward) for name in ABLATIONS for backward in (False, True)),
        *(Case(name, *SIZES[-1], False, dtype='bfloat16') for name in half),
    ]


def main(arguments: Optional[Sequence[str]] = None, docs: Path = ROOT / 'docs') -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description='Measures time and memory of SOFT, SimA and backbones of the OpenMMLab libraries, in turn, in '
        "evaluation and training, with glibc's allocator and one that keeps pages.",
        epilog='MODEL is one of '
        f'{", ".join(CONTENDERS)}, with options behind a colon, as in soft_norm_small:attention.bottleneck_size=7. '
        'Interrupted, the same command goes on. Runs of other code, settings or machines are not reused.',
    )
    add, device = parser.add_argument, 'cuda' if torch.cuda.is_available() else 'cpu'
    add('--models', nargs='+', metavar='MODEL', help='default: what the published page is made of, at its own sizes')
    what = 'images as 512 or 800x1344 (default: 224 512 800x1344)'
    add('--sizes', nargs='+', type=size, metavar='SIZE', default=SIZES, help=what)
    add('--passes', nargs='+', choices=['eval', 'train'], default=['eval', 'train'], help='default: both')
    add('--rounds', type=positive, default=5, help='turns of each backbone (default: %(default)s)')
    add('--minutes', type=float, default=float('inf'), help='after which nothing more is measured (default: no limit)')
    add('--device', choices=['cpu', 'cuda'], default=device, help='default: %(default)s')
    add('--dtype', choices=['float32', 'tf32', 'bfloat16', 'float16'], default='float32', help='default: %(default)s')
    add('--compile', action='store_true', help='with torch.compile')
    add('--threads', type=positive, default=torch.get_num_threads(), help='on the CPU (default: all cores)')
    add('--batch', type=positive, default=1, help='images at a time (default: %(default)s)')
    add('--out-dir', type=Path, default=Path('work_dirs/benchmark'), help='default: %(default)s')
    add('--publish', action='store_true', help='also write docs/data/benchmark.csv, the page and its figures')
    args = parser.parse_args(arguments)
    chosen = [name for name in ('sizes', 'passes', 'dtype') if getattr(args, name) != parser.get_default(name)]
    if chosen and not args.models:
        parser.error('--sizes, --passes and --dtype need --models; without it, all of the page is measured')
    settings = dict(device=args.device, compile=args.compile, threads=args.threads, batch=args.batch)
    cases = [case._replace(**settings) for case in plan()]
    if args.models:
        every = itertools.product(args.models, args.sizes, args.passes)
        settings['dtype'] = args.dtype
        for name in args.models:
            check_contender(name)
        cases = [Case(name, *one, passes == 'train', **settings) for name, one, passes in every]
    runs = run_benchmark(cases, args.out_dir / 'runs.csv', args.rounds, time.time() + 60 * args.minutes)
    if runs.empty or (args.publish and len(runs) < len(cases) * runs.allocator.nunique()):
        raise UsageError('The time ended before each backbone was measured once; the same command goes on.')
    if args.publish:
        publish(runs, docs)
    page = args.out_dir / 'benchmark.md'
    page.write_text(report(runs))
    print(f'{page.read_text()}\nThe report is {page}')


if __name__ == '__main__':
    raise SystemExit(command_line(main))
