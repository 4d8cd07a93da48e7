"""Runs SOFT, SimA and the hosts' backbones side by side: time and memory against tokens, and accuracy."""
import argparse
import sys
from pathlib import Path
from typing import Optional

try:
    import mmsoft  # noqa: F401  first of all: it says which host library does not fit
except ImportError as error:
    sys.exit(str(error))

import torch  # noqa: E402

from mmsoft.analysis.benchmark_command import QUICK, benchmark  # noqa: E402
from mmsoft.analysis.benchmark_worker import DTYPES  # noqa: E402
from mmsoft.analysis.contenders import CONTENDERS, ENTRANTS  # noqa: E402
from mmsoft.apis.cli import command_line  # noqa: E402

DEVICES = dict(cpu=['float32'], cuda=list(DTYPES))
PASSES = dict(forward=False, backward=True)


def size(text: str) -> tuple:
    """``'512'`` or ``'800x1344'`` as rows and columns."""
    rows, _, columns = text.partition('x')
    return int(rows), int(columns or rows)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--models', nargs='+', choices=list(ENTRANTS), default=list(CONTENDERS),
                        metavar='MODEL', help=f'from {", ".join(ENTRANTS)} (default: all but nano)')
    parser.add_argument('--sizes', nargs='+', type=size, metavar='SIZE', help='images as 512 or 800x1344',
                        default=[(224, 224), (512, 512), (800, 1344), (1536, 1536), (2048, 2048)])
    parser.add_argument('--passes', nargs='+', choices=PASSES, default=list(PASSES),
                        help='backward is forward and backward (default: both)')
    parser.add_argument('--accuracy', nargs='*', type=size, metavar='SIZE', default=[(224, 224), (512, 512)],
                        help='images to measure the accuracy on (default: 224 512; give none to leave it out)')
    parser.add_argument('--repeats', type=int, default=5, help='times that each backbone has its turn (default: 5)')
    parser.add_argument('--patience', type=float, default=10, metavar='SECONDS',
                        help='for the turns of a backbone; if one run takes longer, larger images are left out '
                        '(default: 10)')
    parser.add_argument('--device', nargs='+', choices=list(DEVICES),
                        default=['cpu', 'cuda'] if torch.cuda.is_available() else ['cpu'],
                        help='(default: cpu, and cuda where there is one)')
    parser.add_argument('--dtype', nargs='+', choices=DTYPES, help='bfloat16 and float16 by autocast (default: float32 '
                        'on the CPU, and all, with and without torch.compile, on a GPU)')
    parser.add_argument('--compile', action='store_true', help='with torch.compile')
    parser.add_argument('--threads', type=int, default=torch.get_num_threads(), help='on the CPU (default: all)')
    parser.add_argument('--batch', type=int, default=1, help='images at a time (default: 1)')
    parser.add_argument('--quick', action='store_true', help='nano networks on small images: does it run?')
    parser.add_argument('--out-dir', type=Path, default=Path('work_dirs/benchmark'), help='(default: %(default)s)')
    args = parser.parse_args()
    args.passes = [PASSES[name] for name in args.passes]
    return args


def run(device: list, dtype: Optional[list], compile: bool, out_dir: Path, **options) -> None:
    """One report for each setting; if there are several, each in a folder of its own."""
    settings = [dict(device=one, dtype=each, compile=compiled) for one in device for each in dtype or DEVICES[one]
                for compiled in ([compile] if dtype or compile or one == 'cpu' else [False, True])]
    for one in settings:
        name = '{device}_{dtype}'.format(**one) + '_compiled' * one['compile']
        benchmark(out_dir=out_dir / name if len(settings) > 1 else out_dir, **one, **options)
        options['accuracy'] = []  # it is the CPU's, once


def main() -> int:
    options = vars(parse_args())
    if options.pop('quick'):
        options.update(QUICK)
    return command_line(lambda: run(**options), 'Interrupted; what was measured is in the output folder.')


if __name__ == '__main__':
    sys.exit(main())
