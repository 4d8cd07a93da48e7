"""The command line of the figures."""
import argparse
from pathlib import Path
from typing import List, Sequence

from mmsoft.apis.cli import command_line
from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write
from . import FIGURES
from .options import NETWORKS, Options


def make_figures(names: Sequence[str], out_dir: Path, force: bool = False, options: Options = Options()) -> List[Path]:
    """Measures and draws figures as ``OUT_DIR/NAME.png``, each beside ``OUT_DIR/NAME.csv``, from which it is drawn.

    Args:
        names (Sequence[str]): Keys of :data:`FIGURES`; empty for all.
        out_dir (Path): Folder, which is made if need be.
        force (bool): Whether to replace figures that are there.
        options (Options): What they are made of.

    Raises:
        UsageError: If there is no such figure or network, if a figure is there already, or if it cannot be made of
            what is given.
    """
    for kind, known, given in (('figure', FIGURES, names), ('network', NETWORKS, options.networks)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise UsageError(f'There is no {kind} {", ".join(unknown)}; choose from {", ".join(known)}.')
    if options.count < 1 or not all(0 <= place <= 1 for place in options.query or ()):
        raise UsageError('--count is 1 or more, and --query two numbers between 0 and 1.')
    pictures = [out_dir / f'{name}.png' for name in names or FIGURES]
    for path in pictures:
        if not force and (path.exists() or path.with_suffix('.csv').exists()):
            raise UsageError(f'{path} or its table exists and is not replaced without --force; or choose another '
                             '--out-dir.')
    out_dir.mkdir(parents=True, exist_ok=True)
    for path in pictures:
        figure = FIGURES[path.stem]
        print(f'{path}: {figure.TITLE}', flush=True)
        table = figure.measure(options)
        with atomic_write(path.with_suffix('.csv')) as file:
            table.to_csv(file, index=False)
        with atomic_write(path) as file:
            figure.draw(table, options).savefig(file, format='png', dpi=110)
    return pictures


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Draws the papers\' figures anew: a picture and its table each.')
    add = parser.add_argument
    add('names', nargs='*', metavar='FIGURE', help=f'from {", ".join(FIGURES)} (default: all)')
    source = parser.add_mutually_exclusive_group()
    source.add_argument('--pictures', type=Path, dest='folder', metavar='FOLDER', help='pictures to look at')
    source.add_argument('--demo-data', action='store_true', help='look at generated scenes (the default)')
    add('--count', type=int, default=Options().count, help='most pictures for one figure (default: %(default)s)')
    add('--network', nargs=3, action='append', default=[], metavar=('NAME', 'CONFIG', 'CHECKPOINT'),
        help=f'weights of {", ".join(NETWORKS)}, and the config that they are of (default: random weights)')
    add('--query', nargs=2, type=float, metavar=('X', 'Y'),
        help='token whose attention is shown, from 0 0 to 1 1 (default: on the largest object, or the middle)')
    add('--quick', action='store_true', help='little of everything: does it run?')
    add('--force', action='store_true', help='replace figures that are there')
    add('--out-dir', type=Path, default=Path('work_dirs/figures'), help='default: %(default)s')
    return parser.parse_args()


def main() -> int:
    """Runs the command line, and returns its exit code."""
    given = parse_args()
    options = Options(given.folder, given.count, {name: tuple(files) for name, *files in given.network}, given.query,
                      given.quick)
    return command_line(lambda: make_figures(given.names, given.out_dir, given.force, options) and None)
