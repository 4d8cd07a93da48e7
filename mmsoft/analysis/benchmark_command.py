"""The command line of the benchmark."""
import argparse
import itertools
from pathlib import Path

import torch

from mmsoft.apis.cli import command_line
from mmsoft.utils import UsageError
from .benchmark import Settings, run_benchmark
from .contenders import CONTENDERS, PICTURES, WEIGHTS
from .gpu_count import count_table
from .report import markdown, write_report
from .spectrum import errors, share_above_cut

QUICK = dict(models=['soft_norm_nano', 'pvt_tiny'], sizes=[(64, 64), (64, 96)], spectrum=[(64, 96)], rounds=1)
COUNTED = [((224, 224), 128),
           *(((rows, columns), batch) for rows, columns in ((512, 512), (800, 1344)) for batch in (2, 16))]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Runs SOFT, SimA and the hosts\' backbones side by side: time and memory '
        'against tokens, in evaluation and training, for several weights and pictures.')
    parser.add_argument(
        '--models',
        nargs='+',
        choices=list(CONTENDERS),
        metavar='MODEL',
        default=[name for name in CONTENDERS if name != 'soft_norm_nano'],
        help=f'from {", ".join(CONTENDERS)} (default: all but nano)')
    parser.add_argument(
        '--sizes',
        nargs='+',
        type=size,
        metavar='SIZE',
        help='images as 512 or 800x1344',
        default=[(224, 224), (512, 512), (800, 1344)])
    parser.add_argument('--passes', nargs='+', choices=['eval', 'train'], default=['eval', 'train'])
    parser.add_argument(
        '--spectrum',
        nargs='*',
        type=size,
        metavar='SIZE',
        default=[(512, 512)],
        help='images on which to look at the kernel matrices and the errors (default: 512)')
    parser.add_argument(
        '--checkpoint', help='further weights for SOFT, as those that make train leaves for soft_norm_nano')
    parser.add_argument('--rounds', type=int, default=3, help='times that each backbone has its turn (default: 3)')
    parser.add_argument(
        '--patience',
        type=float,
        default=30,
        metavar='SECONDS',
        help='for one run; what takes longer is '
        'not run again, nor on larger images (default: 30)')
    parser.add_argument('--device', choices=['cpu', 'cuda'], default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--dtype', choices=['float32', 'tf32', 'bfloat16', 'float16'], default='float32')
    parser.add_argument('--compile', action='store_true', help='with torch.compile')
    parser.add_argument('--threads', type=int, default=torch.get_num_threads(), help='on the CPU (default: all)')
    parser.add_argument('--batch', type=int, default=1, help='images at a time (default: 1)')
    parser.add_argument('--count', action='store_true', help='instead, count what a GPU would have to do')
    parser.add_argument('--quick', action='store_true', help='nano on small images: does it run?')
    parser.add_argument(
        '--out-dir',
        type=Path,
        default=Path('work_dirs/benchmark'),
        help='what is measured there already is not measured again (default: %(default)s)')
    return parser.parse_args()


def size(text: str) -> tuple:
    """``'512'`` or ``'800x1344'`` as rows and columns."""
    rows, _, columns = text.partition('x')
    return int(rows), int(columns or rows)


def main() -> int:
    """Runs the command line, and returns its exit code."""
    options = vars(parse_args())
    if options['quick']:
        options.update(QUICK)
    return command_line(lambda: run(**options), 'Interrupted; the same command goes on where it was.')


def run(models, sizes, passes, spectrum, checkpoint, rounds, patience, out_dir, count, quick, **settings) -> None:
    """Measures and writes the report, or counts and prints.

    Raises:
        UsageError: If the device cannot do what is asked for.
    """
    if count:
        soft = [model for model in models if CONTENDERS[model].backbone['type'] == 'mmsoft.SOFT']
        print(count_table(soft, COUNTED))
        return
    settings = Settings(**settings)
    if settings.device == 'cuda' and not torch.cuda.is_available():
        raise UsageError('--device cuda needs a GPU that PyTorch can use, and finds none; take --device cpu.')
    if settings.device == 'cpu' and settings.dtype in ('tf32', 'float16'):
        raise UsageError(f'--dtype {settings.dtype} needs a GPU; a CPU takes float32 and bfloat16.')
    runs = run_benchmark(models, sizes, [name == 'train' for name in passes], out_dir / 'benchmark.csv', settings,
                         rounds, patience, checkpoint)
    print(f'The report is {write_report(runs, out_dir, [spectra(models, spectrum, checkpoint)])}')


def spectra(models, sizes, checkpoint=None) -> str:
    """A Markdown section: shares of eigenvalues above the cut, and errors, by contender, weights, picture and size."""
    header = ['backbone', 'weights', 'picture', 'image', 'above the cut, by stage', 'error', 'error of the iteration']
    conditions = itertools.product([*WEIGHTS, *([checkpoint] if checkpoint else [])], PICTURES, sizes)
    rows = []
    for model, (weights, picture, (height, width)) in itertools.product(models, conditions):
        if len(CONTENDERS[model].conditions) > 1 and 'published' not in model:
            case = model, weights, picture, (height, width)
            shares = ', '.join(f'{share:.1%}' for share in share_above_cut(*case))
            rows.append([CONTENDERS[model].label, Path(weights).name, picture, f'{height}×{width}', shares,
                         *(f'{error:.1e}' for error in errors(*case))])
    if not rows:
        return ''
    return ('## Kernel matrices and accuracy\n\nShare of eigenvalues that Newton\'s steps invert (the others they leave '
            'out), and largest error over all maps against the iteration in float64, relative to the largest value.\n\n'
            f'{markdown(rows, header)}')
