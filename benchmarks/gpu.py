"""Everything to find out on a machine with a GPU, as one command: ``make gpu``.

Tests marked ``cuda``, accuracy of the networks, and time and memory of the contenders, in each arithmetic.
Interrupted, or out of time, the same command goes on.
"""
import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import pandas as pd
import torch

from .common import ROOT, commit, processor, write_table
from .contenders import CONTENDERS, IMAGES, build_contender
from .speed import check_device, run_benchmark
from .speed_report import cost_table
from .worker import Settings, set_precision

SIZES, DTYPES = [(224, 224), (512, 512), (800, 1344)], ['float32', 'tf32', 'bfloat16']
MODELS = [name for name in CONTENDERS if name not in ('soft_norm_nano', 'soft_small_published')]
QUICK_MODELS, QUICK_SIZES = ['soft_norm_nano', 'pvt_tiny'], [(64, 64)]


def parity(models: Sequence[str], device: str, dtypes: Sequence[str], size: Tuple[int, int]) -> pd.DataFrame:
    """Largest error over the maps of each of our networks against a CPU in float64, relative to the largest value."""
    rows, image = [], IMAGES['photograph'](1, *size)
    for model in models:
        if not CONTENDERS[model].backbone['type'].startswith('mmsoft.'):
            continue
        torch.manual_seed(0)
        network = build_contender(model, 'trained')
        network.eval()
        with torch.no_grad():
            exact = network.double()(image.double())
            network.float().to(device)
            for dtype in dtypes:
                with set_precision(device, dtype):
                    maps = [map_.double().cpu() for map_ in network(image.to(device))]
                error = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(maps, exact))
                rows.append(dict(model=CONTENDERS[model].label, dtype=dtype, error=f'{error:.1e}'))
    return pd.DataFrame(rows)


def run(device: str, quick: bool, minutes: float, out_dir: Path) -> Path:
    """Runs all parts and writes ``gpu.md``, which it returns, and ``gpu.csv``; nothing starts after ``minutes``."""
    dtypes = [dtype for dtype in DTYPES if device == 'cuda' or dtype != 'tf32']
    check_device(device, dtypes)
    models, sizes, end = QUICK_MODELS if quick else MODELS, QUICK_SIZES if quick else SIZES, time.time() + 60 * minutes
    out_dir.mkdir(parents=True, exist_ok=True)
    parts: List[str] = [f'# {processor(device)}', f'torch {torch.__version__}, commit {commit()}. Medians over rounds, '
                        'weights and images / the worst of them; memory is the peak above weights and image.']
    page = out_dir / 'gpu.md'

    def add(title: str, text: str) -> None:
        parts.extend([f'## {title}', text])
        page.write_text('\n\n'.join(parts) + '\n')
        print(f'{title}\n{text}\n', flush=True)

    tests = [sys.executable, '-m', 'pytest', '-q', '-m', 'cuda', '-p', 'no:cacheprovider', *['--collect-only'] * quick]
    done = subprocess.run(tests, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    add('Tests for GPUs', done.stdout.strip().splitlines()[-1])
    add('Error against float64 on a CPU', parity(models, device, dtypes, sizes[0]).to_markdown(index=False))
    tables = []
    for compiled in [False] if quick else [False, True]:
        for dtype in dtypes:
            settings = Settings(device, dtype, compiled, torch.get_num_threads())
            title = f'{dtype}, {"compiled" if compiled else "eager"}'
            for size in sizes:
                if time.time() < end:
                    rounds = 1 if quick else 3
                    runs = run_benchmark(models, [size], [False, True], out_dir / 'runs.csv', settings, rounds)
                    tables.append(runs.assign(part=title))
            for backward in (False, True):
                chosen = [table[table.backward == backward] for table in tables if (table.part == title).all()]
                add(f'{"Training" if backward else "Evaluation"}, {title}',
                    cost_table(pd.concat(chosen)) if chosen else 'Not measured yet: the time was over.')
    if tables:
        write_table(pd.concat(tables), out_dir / 'gpu.csv')
    return page


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description='Tests and measures everything that needs a GPU, and writes one page.')
    add = parser.add_argument
    add('--device', choices=['cuda', 'cpu'], default='cuda', help='default: %(default)s; cpu to try the command')
    add('--quick', action='store_true', help='small backbones on small images, eager: does it run?')
    add('--minutes', type=float, default=20, help='start no measurement after so long (default: %(default)s)')
    add('--out-dir', type=Path, default=Path('work_dirs/gpu'), help='default: %(default)s')
    print(f'The page is {run(**vars(parser.parse_args(arguments)))}')
