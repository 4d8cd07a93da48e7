"""Everything to find out on a machine with a GPU, as one command: ``python -m benchmarks.gpu``.

Tests marked ``cuda``, and the benchmark in each arithmetic, eager and compiled. Interrupted, the same command goes on.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from mmsoft.apis.cli import command_line

from .common import ROOT, commit, processor
from .contenders import CONTENDERS
from .speed import add_sizes, check_device, run_benchmark
from .speed_report import write_report
from .worker import Settings

MODELS = [name for name in CONTENDERS if name not in ('soft_norm_nano', 'soft_small_published')]
ARITHMETIC = dict(cuda=('float32', 'tf32', 'bfloat16'), cpu=('float32',))


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description='Tests and measures everything that needs a GPU, and writes one page.')
    add = parser.add_argument
    add('--device', choices=[*ARITHMETIC], default='cuda', help='default: %(default)s; cpu to try the command')
    add('--models', nargs='+', metavar='MODEL', default=MODELS, help='default: all but the smallest')
    add_sizes(parser)
    add('--out-dir', type=Path, default=Path('work_dirs/gpu'), help='default: %(default)s')
    args = parser.parse_args(arguments)
    check_device(Settings(args.device))
    args.out_dir.mkdir(parents=True, exist_ok=True)
    tests = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', '-m', 'cuda', '-p', 'no:cacheprovider', 'tests'],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    page = args.out_dir / 'gpu.md'
    parts = [f'# {processor(args.device)}, commit {commit()}', tests.stdout.strip().splitlines()[-1]]
    for compiled in (False, True)[: len(ARITHMETIC[args.device])]:
        for dtype in ARITHMETIC[args.device]:
            settings = Settings(args.device, dtype, compiled)
            runs = run_benchmark(args.models, args.sizes, [False, True], args.out_dir / 'runs.csv', settings, rounds=3)
            parts.append(write_report(runs, args.out_dir).read_text())
            page.write_text('\n\n'.join(parts) + '\n')
    print(f'{page.read_text()}\nThe page is {page}')


if __name__ == '__main__':
    raise SystemExit(command_line(main))
