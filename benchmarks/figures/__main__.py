"""Draws figures of the papers again, each an image and its CSV table: ``python -m benchmarks.figures``."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Optional

from mmsoft.apis.cli import command_line
from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write

from ..common import write_table
from . import memory, newton, spectral_norms
from .inputs import NETWORKS, Inputs

FIGURES: dict[str, ModuleType] = dict(memory=memory, newton=newton, spectral_norms=spectral_norms)
"""By name, modules with ``TITLE``, ``measure(inputs)``, a DataFrame, and ``draw(table, inputs)``, a Figure of it."""


def make_figures(names: Sequence[str], out_dir: Path, inputs: Inputs = Inputs()) -> None:
    """Draws figures, all if none is named, as ``OUT_DIR/NAME.png`` from ``OUT_DIR/NAME.csv``; older ones are replaced.

    Raises:
        UsageError: If there is no such figure or network, or if a figure cannot be made of the inputs.
    """
    for kind, known, given in (('figure', FIGURES, names), ('network', NETWORKS, inputs.networks)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise UsageError(f'There is no {kind} {", ".join(unknown)}; choose from {", ".join(known)}.')
    for name in names or FIGURES:
        figure, path = FIGURES[name], out_dir / f'{name}.png'
        print(f'{path}: {figure.TITLE}', flush=True)
        table = figure.measure(inputs)
        write_table(table, path.with_suffix('.csv'))
        with atomic_write(path) as file:
            figure.draw(table, inputs).savefig(file, format='png', dpi=110)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description='Draws figures of the papers again, each beside its table.')
    add = parser.add_argument
    add('names', nargs='*', metavar='FIGURE', help=f'from {", ".join(FIGURES)} (default: all)')
    metavar = ('NAME', 'CONFIG', 'CHECKPOINT')
    words = f'weights of {", ".join(NETWORKS)}, and their config (default: random weights)'
    add('--network', nargs=3, action='append', default=[], metavar=metavar, help=words)
    add('--out-dir', type=Path, default=Path('work_dirs/figures'), help='default: %(default)s')
    given = parser.parse_args(arguments)
    make_figures(given.names, given.out_dir, Inputs({name: tuple(files) for name, *files in given.network}))


if __name__ == '__main__':
    raise SystemExit(command_line(main))
