"""The command line of the benchmark."""
import argparse
from pathlib import Path
from typing import Optional, Sequence, Tuple

import torch

from mmsoft.apis.cli import command_line
from mmsoft.utils import UsageError
from .benchmark import Settings, run_benchmark
from .contenders import CONTENDERS
from .report import write_report
from .spectrum import look_at_kernels

QUICK = dict(models=['soft_norm_nano', 'pvt_tiny'], sizes=[(64, 64), (64, 96)], spectrum=(64, 96), rounds=1)


def size(text: str) -> Tuple[int, int]:
    """``'512'`` or ``'800x1344'`` as rows and columns."""
    rows, _, columns = text.partition('x')
    return int(rows), int(columns or rows)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Runs SOFT, SimA and the hosts\' backbones side by side, in '
                                     'evaluation and training, for several weights and pictures.')
    add = parser.add_argument
    add('--models', nargs='+', choices=list(CONTENDERS), metavar='MODEL',
        help=f'from {", ".join(CONTENDERS)} (default: all but nano)', default=[name for name in CONTENDERS if name != 'soft_norm_nano'])
    add('--sizes', nargs='+', type=size, metavar='SIZE', default=[(224, 224), (512, 512), (800, 1344)],
        help='images as 512 or 800x1344')
    add('--passes', nargs='+', choices=['eval', 'train'], default=['eval', 'train'])
    add('--spectrum', type=size, metavar='SIZE', default=(512, 512),
        help='image on which to look at kernel matrices and accuracy (default: 512; 0 leaves it out)')
    add('--checkpoint', help='further weights for SOFT, such as those that make train leaves, for soft_norm_nano')
    add('--rounds', type=int, default=3, help='times that each backbone has its turn (default: 3)')
    add('--patience', type=float, default=30, metavar='SECONDS',
        help='what takes longer for a run has no other, and none on larger images (default: 30)')
    add('--device', choices=['cpu', 'cuda'], default='cuda' if torch.cuda.is_available() else 'cpu')
    add('--dtype', choices=['float32', 'tf32', 'bfloat16', 'float16'], default='float32')
    add('--compile', action='store_true', help='with torch.compile')
    add('--threads', type=int, default=torch.get_num_threads(), help='on the CPU (default: all)')
    add('--batch', type=int, default=1, help='images at a time (default: 1)')
    add('--quick', action='store_true', help='nano on small images: does it run?')
    add('--out-dir', type=Path, default=Path('work_dirs/benchmark'),
        help='what is measured there already is not measured again (default: %(default)s)')
    return parser.parse_args()


def run(models: Sequence[str], sizes: Sequence[Tuple[int, int]], passes: Sequence[str], spectrum: Tuple[int, int],
        checkpoint: Optional[str], rounds: int, patience: float, out_dir: Path, **settings) -> Path:
    """Measures and writes the report.

    Args:
        models (Sequence[str]): Keys of the contenders.
        sizes (Sequence[tuple[int, int]]): Rows and columns of the pictures.
        passes (Sequence[str]): Of ``'eval'`` and ``'train'``.
        spectrum (tuple[int, int]): Size of the picture to look at the kernel matrices on, zeros for none.
        checkpoint (str, optional): Further weights for those of SOFT that they fit.
        rounds (int): Times that each case has its turn.
        patience (float): See :func:`run_benchmark`.
        out_dir (Path): Folder for the report, and for what it is made from.
        **settings: Of :class:`Settings`.

    Raises:
        UsageError: If the device cannot do what is asked for.
    """
    settings = Settings(**settings)
    if settings.device == 'cuda' and not torch.cuda.is_available():
        raise UsageError('--device cuda needs a GPU that PyTorch can use, and finds none; take --device cpu.')
    if settings.device == 'cpu' and settings.dtype in ('tf32', 'float16'):
        raise UsageError(f'--dtype {settings.dtype} needs a GPU; a CPU takes float32 and bfloat16.')
    out_dir.mkdir(parents=True, exist_ok=True)
    passes = [name == 'train' for name in passes]
    runs = run_benchmark(models, sizes, passes, out_dir / 'runs.csv', settings, rounds, patience, checkpoint)
    spectra = look_at_kernels(models if all(spectrum) else [], spectrum, out_dir / 'spectra.csv', checkpoint)
    return write_report(runs, spectra, out_dir)


def main() -> int:
    """Runs the command line, and returns its exit code."""
    options = vars(parse_args())
    options.update(QUICK if options.pop('quick') else {})
    return command_line(lambda: print(f'The report is {run(**options)}'), 'Interrupted; the same command goes on.')
