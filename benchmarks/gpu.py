"""Everything to find out on a machine with a GPU, as one command: ``python -m benchmarks.gpu``.

Tests marked ``cuda``, and the benchmark in each arithmetic, eager and compiled. Interrupted, the same command goes on.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from mmsoft.apis.cli import command_line

from .common import ROOT, commit, processor
from .speed import add_sizes, check_device, plan, run_benchmark
from .speed_report import write_report
from .worker import Case, Settings

MODELS = list(dict.fromkeys(case.model for case in plan()['float32'] if case.width == 1344 and ':' not in case.model))
QUICK = (['soft_norm_nano', 'soft_norm_nano:attention.bottleneck_limit=4'], [(64, 64), (96, 128)], 1)
ARITHMETIC = dict(cuda=('float32', 'tf32', 'bfloat16'), cpu=('float32', 'bfloat16'))


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description='Tests and measures everything that needs a GPU, and writes one page.')
    add = parser.add_argument
    add('--device', choices=[*ARITHMETIC], default='cuda', help='default: %(default)s; cpu to try the command')
    add('--models', nargs='+', metavar='MODEL', default=MODELS, help="default: the published page's")
    add_sizes(parser)
    add('--quick', action='store_true', help='two small networks, small images and one round, to try the command')
    add('--minutes', type=float, default=20, help='after which nothing more is measured (default: %(default)s)')
    add('--out-dir', type=Path, default=Path('work_dirs/gpu'), help='default: %(default)s')
    args = parser.parse_args(arguments)
    check_device(Settings(args.device))
    until = time.time() + 60 * args.minutes
    args.out_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, '-m', 'pytest', '-q', '-m', 'cuda', '-p', 'no:cacheprovider', 'tests']
    tests = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    page = args.out_dir / 'gpu.md'
    models, sizes, rounds = QUICK if args.quick else (args.models, args.sizes, 3)
    cases = [Case(model, *one, backward) for model in models for one in sizes for backward in (False, True)]
    arithmetic = [
        Settings(args.device, dtype, compiled)
        for compiled in ((False, True) if args.device == 'cuda' else (False,))
        for dtype in ARITHMETIC[args.device]
    ]
    for count in range(1, rounds + 1):  # every arithmetic once, then again
        parts = [f'# {processor(args.device)}, commit {commit()}', tests.stdout.strip().splitlines()[-1]]
        for settings in arithmetic:
            runs = run_benchmark(cases, args.out_dir / 'runs.csv', settings, count, until=until)
            missing = f'{settings.dtype}{", compiled" * settings.compile}: not measured yet; the same command goes on.'
            parts.append(write_report(runs, args.out_dir).read_text() if len(runs) else missing)
        page.write_text('\n\n'.join(parts) + '\n')
    print(f'{page.read_text()}\nThe page is {page}')


if __name__ == '__main__':
    raise SystemExit(command_line(main))
