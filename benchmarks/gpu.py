"""Everything to find out on a machine with a GPU, as one command: ``python -m benchmarks.gpu``.

Tests marked ``cuda``, and the benchmark in each arithmetic, eager and compiled. Interrupted, the same command goes on.
"""

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from mmsoft.utils.cli import command_line

from .common import ROOT, commit, processor
from .speed import SIZES, check_device, plan, run_benchmark
from .speed_report import report
from .worker import Case

MODELS = list(dict.fromkeys(case.model for case in plan() if case.width == 1344 and ':' not in case.model))
QUICK = (['soft_norm_nano', 'soft_norm_nano:attention.bottleneck_limit=4'], [(64, 64), (96, 128)], 1)
ARITHMETIC = dict(cuda=('float32', 'tf32', 'bfloat16'), cpu=('float32', 'bfloat16'))


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command line; its exit status is 1 if tests fail."""
    parser = argparse.ArgumentParser(description='Tests and measures everything that needs a GPU, and writes one page.')
    add = parser.add_argument
    add('--device', choices=[*ARITHMETIC], default='cuda', help='default: %(default)s; cpu to try the command')
    add('--quick', action='store_true', help='two small networks, small images and one round, to try the command')
    add('--minutes', type=float, default=20, help='after which nothing more is measured (default: %(default)s)')
    add('--out-dir', type=Path, default=Path('work_dirs/gpu'), help='default: %(default)s')
    args = parser.parse_args(arguments)
    models, sizes, rounds = QUICK if args.quick else (MODELS, SIZES, 3)
    compiled = (False, True) if args.device == 'cuda' else (False,)
    dtypes = [*itertools.product(compiled, ARITHMETIC[args.device])]
    cases = [
        Case(model, *one, backward, args.device, dtype, compiled)
        for (compiled, dtype), model, one, backward in itertools.product(dtypes, models, sizes, (False, True))
    ]
    check_device(cases)
    until = time.time() + 60 * args.minutes
    args.out_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, '-m', 'pytest', '-q', '-m', 'cuda', '-p', 'no:cacheprovider', 'tests']
    tests = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log = args.out_dir / 'tests.txt'
    log.write_text(tests.stdout)
    passed = f'Tests {"failed" if tests.returncode else "passed"}: {tests.stdout.strip().splitlines()[-1]} ({log})'
    runs = run_benchmark(cases, args.out_dir / 'runs.csv', rounds, until)
    parts = [f'# {processor(args.device)}, commit {commit()}', passed]
    for compiled, dtype in dtypes:
        some = runs[(runs['dtype'] == dtype) & (runs['compile'] == compiled)]
        missing = f'{dtype}{", compiled" * compiled}: not measured yet; the same command goes on.'
        parts.append(report(some) if len(some) else missing)
    page = args.out_dir / 'gpu.md'
    page.write_text('\n\n'.join(parts) + '\n')
    print(f'{page.read_text()}\nThe page is {page}')
    return 1 if tests.returncode else 0


if __name__ == '__main__':
    raise SystemExit(command_line(main))
