"""Draws figures of the papers again, each an image and its CSV table: ``python -m benchmarks.figures``."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Optional

from mmsoft.utils import UsageError
from mmsoft.utils.cli import command_line
from mmsoft.utils.files import atomic_write

from ..common import be_quiet, write_table
from . import memory, newton, spectral_norms
from .inputs import NETWORKS, build, trained

FIGURES: dict[str, ModuleType] = dict(memory=memory, newton=newton, spectral_norms=spectral_norms)
"""By name, modules with ``TITLE``, ``USES`` (names of networks), ``measure(networks)`` and ``draw(table, weights)``."""


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command line.

    Raises:
        UsageError: If there is no such figure or network, or if a figure cannot be made of the networks.
    """
    parser = argparse.ArgumentParser(description='Draws figures of the papers again, each beside its table.')
    add = parser.add_argument
    add('names', nargs='*', metavar='FIGURE', help=f'from {", ".join(FIGURES)} (default: all)')
    metavar = ('NAME', 'CONFIG', 'CHECKPOINT')
    words = f'weights of {", ".join(NETWORKS)}, and their config (default: random weights)'
    add('--network', nargs=3, action='append', default=[], metavar=metavar, help=words)
    add('--out-dir', type=Path, default=Path('work_dirs/figures'), help='default: %(default)s')
    args = parser.parse_args(arguments)
    given = {name: files for name, *files in args.network}
    for kind, known, names in (('figure', FIGURES, args.names), ('network', NETWORKS, given)):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UsageError(f'There is no {kind} {", ".join(unknown)}; choose from {", ".join(known)}.')
    be_quiet()
    cfgs = {**NETWORKS, **{name: trained(*files) for name, files in given.items()}}
    for name in args.names or FIGURES:
        figure, path = FIGURES[name], args.out_dir / f'{name}.png'
        print(f'{path}: {figure.TITLE}', flush=True)
        table = figure.measure({used: build(cfgs[used]).double() for used in figure.USES})
        write_table(table, path.with_suffix('.csv'))
        weights = [f'{"trained" if used in given else "random"} weights of {used}' for used in figure.USES]
        with atomic_write(path) as file:
            figure.draw(table, ', '.join(weights)).savefig(file, format='png', dpi=110)


if __name__ == '__main__':
    raise SystemExit(command_line(main))
