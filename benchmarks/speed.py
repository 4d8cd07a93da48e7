"""Measures contenders side by side in turn, with both allocators: ``python -m benchmarks.speed``."""

import argparse
import functools
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import pandas as pd
import torch

from mmsoft.apis.cli import command_line
from mmsoft.utils import UsageError

from .common import ROOT, code_version, processor, read_table, write_table
from .contenders import ABLATIONS, CONTENDERS, contender
from .speed_report import publish, write_report
from .worker import Case, Settings

Size = tuple[int, int]
SIZES: list[Size] = [(224, 224), (512, 512), (800, 1344)]
KEPT = str(2**32 - 1)
# glibc gives large blocks back to the system at once; each new one then costs page faults. Many deployments run with
# an allocator that keeps them, such as jemalloc or tcmalloc; these settings make glibc keep them, too.
ALLOCATORS: dict[str, dict[str, str]] = {
    'glibc': {},
    'keeps pages': dict(
        MALLOC_MMAP_MAX_='0', MALLOC_MMAP_THRESHOLD_=KEPT, MALLOC_TRIM_THRESHOLD_=KEPT, MALLOC_TOP_PAD_='500000000'
    ),
}
# Whatever decides what a run measures; a run with all of them equal is not repeated, and no other is reported.
KEY = [*Case._fields, 'allocator', *Settings._fields, 'code', 'machine', 'torch']


def run_benchmark(
    cases: Sequence[Case],
    file: Path,
    settings: Settings = Settings(),
    rounds: int = 5,
    patience: float = 30.0,
    until: float = float('inf'),
) -> pd.DataFrame:
    """Measures each contender in turn, with both allocators on a CPU.

    Args:
        cases (Sequence[Case]): What to measure.
        file (Path): CSV file. A run that it holds under the same :data:`KEY` and round is not repeated; new ones are
            appended as they are made.
        settings (Settings): Device, arithmetic and so on.
        rounds (int): In each of them every case has one turn.
        patience (float): Seconds of a run after which a case has no further turn.
        until (float): Time (:func:`time.time`) after which nothing more is measured.

    Returns:
        DataFrame: The runs that were asked for: :data:`KEY`, ``commit``, ``round``, ``seconds``, ``memory`` (peak
        bytes above weights and image, NaN except in the first round), and a ``note`` if it failed.

    Raises:
        UsageError: If the device cannot do what is asked for, or the file is of another version.
    """
    check_device(settings)
    known = read_table(file) if file.exists() else pd.DataFrame(columns=KEY)
    if not {*KEY} <= {*known.columns}:
        raise UsageError(f'{file} is of an older version of this command; move it away or choose another --out-dir.')
    code, commit = code_version()
    common = dict(settings._asdict(), code=code, machine=processor(settings.device), torch=torch.__version__)
    allocators = ALLOCATORS if settings.device == 'cpu' else ['glibc']
    columns = [*KEY, 'round']
    done = {tuple(str(row[name]) for name in columns): row for row in known.to_dict('records')}
    rows, slow = [], set()
    models = dict.fromkeys(case.model for case in cases)
    for turn, model, allocator in itertools.product(range(rounds), models, allocators):
        new = []
        for case in sorted(case for case in cases if case.model == model):
            row = dict(case._asdict(), allocator=allocator, **common, round=turn)
            same = done.get(tuple(str(row[name]) for name in columns))
            if same is not None:
                rows.append(same)
            elif (case, allocator) not in slow and time.time() < until:
                new.append((case, dict(row, commit=commit)))
        if new:
            results = measure_all([case for case, _ in new], allocator, settings, with_memory=turn == 0)
            fresh = [dict(row, **result) for (_, row), result in zip(new, results)]
            rows += fresh
            print(f'round {turn + 1}, {model}, {allocator}', file=sys.stderr)
            known = pd.concat([known, pd.DataFrame(fresh)]) if len(known) else pd.DataFrame(fresh)
            write_table(known, file)
        slow |= {
            (Case(*(row[name] for name in Case._fields)), row['allocator'])
            for row in rows
            if not row['seconds'] < patience
        }
    return pd.DataFrame(rows)


@functools.cache
def start_worker(allocator: str) -> subprocess.Popen:
    """A process that has imported everything, and measures each contender in a child of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith('MALLOC_')}
    env.update(ALLOCATORS[allocator], PYTHONPATH=os.pathsep.join([str(ROOT), env.get('PYTHONPATH', '')]))
    command = [sys.executable, '-W', 'ignore', '-m', 'benchmarks.worker']
    return subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def measure_all(cases: Sequence[Case], allocator: str, settings: Settings, with_memory: bool) -> list[dict]:
    """``seconds``, ``memory`` and ``note`` of each case of one contender.

    If it ends for lack of memory, the benchmark goes on; an error of the code ends it.
    """
    worker = start_worker(allocator)
    print(json.dumps(dict(cases=cases, settings=settings, with_memory=with_memory)), file=worker.stdin, flush=True)
    *results, code = itertools.takewhile(lambda one: one is not None, map(json.loads, worker.stdout))
    if code > 0:
        raise RuntimeError(f'the worker of {cases[0].model} failed; its trace is above')
    results += [dict(note='ended by the system, which may be out of memory')] * (len(cases) - len(results))
    return [dict(dict(seconds=float('nan'), memory=None, note=''), **result) for result in results]


def check_device(settings: Settings) -> None:
    """Raises UsageError if there is no such device here or it has no such arithmetic."""
    if settings.device == 'cuda' and not torch.cuda.is_available():
        raise UsageError('--device cuda needs a GPU that PyTorch can use, and finds none; take --device cpu.')
    if settings.device == 'cpu' and settings.dtype in ('tf32', 'float16'):
        raise UsageError(f'--dtype {settings.dtype} needs a GPU; a CPU takes float32 and bfloat16.')


def size(text: str) -> Size:
    """``'512'`` or ``'800x1344'`` as rows and columns."""
    rows, _, columns = text.partition('x')
    return int(rows), int(columns or rows)


def plan() -> dict[str, list[Case]]:
    """What is measured for the published page, by arithmetic."""
    full = [f'soft_{kind}{size}' for size in ('tiny', 'small') for kind in ('norm_', '')]
    limited = [f'soft_norm_{size}_{limit}' for size in ('tiny', 'small') for limit in (100, 400)]
    others = ['sima_xcit_small', 'xcit_small', 'pvt_tiny', 'pvt_small', 'swin_tiny', 'resnet50']
    without_gain = [f'{name}:attention.bottleneck_gain=False' for name in limited]
    trained = [f'soft_norm_{size}{end}' for size in ('tiny', 'small') for end in ('', '_100')]
    trained += [name for name in others if name != 'xcit_small']
    cases = [Case(name, *one, False) for name in [*limited, *others, *full] for one in SIZES]
    cases += [Case(name, *one, True) for name in trained for one in SIZES]
    cases += [Case(name, *SIZES[-1], False) for name in without_gain]
    cases += [Case('soft_norm_small_100', side, side, False) for side in (1024, 1536, 2048)]
    cases += [Case(f'tiny_{name}', 224, 224, backward) for name in ABLATIONS for backward in (False, True)]
    half = ('soft_norm_small_100', 'sima_xcit_small', 'pvt_small', 'swin_tiny')
    return dict(float32=cases, bfloat16=[Case(name, *SIZES[-1], False) for name in half])


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Adds the option of image sizes."""
    what = 'images as 512 or 800x1344 (default: 224 512 800x1344)'
    parser.add_argument('--sizes', nargs='+', type=size, metavar='SIZE', default=SIZES, help=what)


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
    add_sizes(parser)
    add('--passes', nargs='+', choices=['eval', 'train'], default=['eval', 'train'], help='default: both')
    add('--rounds', type=int, default=5, help='turns of each backbone (default: %(default)s)')
    add('--minutes', type=float, default=float('inf'), help='after which nothing more is measured (default: no limit)')
    add('--patience', type=float, default=30, metavar='SECONDS', help='repeat only what is faster (default: 30)')
    add('--device', choices=['cpu', 'cuda'], default=device, help='default: %(default)s')
    add('--dtype', choices=['float32', 'tf32', 'bfloat16', 'float16'], default='float32', help='default: %(default)s')
    add('--compile', action='store_true', help='with torch.compile')
    add('--threads', type=int, default=torch.get_num_threads(), help='on the CPU (default: all cores)')
    add('--batch', type=int, default=1, help='images at a time (default: %(default)s)')
    add('--out-dir', type=Path, default=Path('work_dirs/benchmark'), help='default: %(default)s')
    add('--publish', action='store_true', help='also write docs/data/benchmark.csv, the page and its figures')
    args = parser.parse_args(arguments)
    chosen = [name for name in ('sizes', 'passes', 'dtype') if getattr(args, name) != parser.get_default(name)]
    if chosen and not args.models:
        parser.error('--sizes, --passes and --dtype need --models; without it, all of the page is measured')
    settings = Settings(*(getattr(args, name) for name in Settings._fields))
    cases = plan()
    if args.models:
        every = itertools.product(args.models, args.sizes, (name == 'train' for name in args.passes))
        cases = {args.dtype: [Case(contender(name) and name, *one, backward) for name, one, backward in every]}
    until, file = time.time() + 60 * args.minutes, args.out_dir / 'runs.csv'
    for rounds in range(1, args.rounds + 1):  # what is in the file is not repeated
        runs = pd.concat(
            run_benchmark(some, file, settings._replace(dtype=dtype), rounds, args.patience, until)
            for dtype, some in cases.items()
        )
    if args.publish:
        publish(runs, docs)
    report = write_report(runs, args.out_dir)
    print(f'{report.read_text()}\nThe report is {report}')


if __name__ == '__main__':
    raise SystemExit(command_line(main))
