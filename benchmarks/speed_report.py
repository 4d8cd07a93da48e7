"""Runs of the benchmark as tables: medians over rounds, and the slowest."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Callable

import pandas as pd

from .common import fill_page, markdown, write_table
from .contenders import contender
from .targets import GAIN, MEASURED, Run, ablations_text, ratios, short_text, targets_text
from .worker import ALLOCATORS

OVERVIEW = ('soft_norm_small', 'soft_norm_small_100', 'sima_xcit_small', 'pvt_small', 'swin_tiny', 'resnet50')


def publish(runs: pd.DataFrame, docs: Path) -> None:
    """Writes ``data/benchmark.csv``, the marked parts of both pages, and the figures by ``figures/speed.py``."""
    write_table(runs, docs / 'data/benchmark.csv')
    found = texts(runs)
    for page in ('benchmark.md', 'benchmark_method.md'):
        fill_page(docs / page, benchmark=found.get)
    subprocess.run([sys.executable, docs / 'figures/speed.py'], check=True)


def report(runs: pd.DataFrame) -> str:
    """Markdown of what :func:`run_benchmark` returns."""
    return '\n\n'.join(f'{PARTS[name][0]}\n\n{text}' for name, text in texts(runs).items() if text) + '\n'


def texts(runs: pd.DataFrame) -> dict[str, str]:
    """The :data:`PARTS` of the report by their names, empty if nothing of them was measured."""
    return {name: make(runs) for name, (_, make) in PARTS.items()}


def conditions(runs: pd.DataFrame) -> str:
    """What all runs have in common, and the runs that failed."""
    one, times = runs.iloc[0], 'Memory is the peak above weights and image.'
    if runs['round'].nunique() > 1:
        times = f'Medians over interleaved rounds (the largest of them). {times[:-1]}, of the largest round.'
    notes = runs[runs.note.fillna('') != '']
    return (
        f'{one.machine}, {one.device}, {one.threads} threads, {one["dtype"]}, batch {one.batch}, torch {one.torch}'
        f'{", compiled" * bool(one["compile"])}, commit {one.commit}. {times}'
        + ''.join(
            f'\n* {contender(run.model).label}, {run.height}×{run.width}: {run.note}' for run in notes.itertuples()
        )
    )


def overview(runs: pd.DataFrame) -> str:
    """Seconds and peak memory of some backbones, with each allocator; empty if one was not measured."""
    widths = runs.height.map({224: 224, 800: 1344})
    runs = runs[(runs['dtype'] == 'float32') & runs.model.isin(OVERVIEW) & (runs.width == widths)]
    by = runs.groupby(['model', 'height', 'backward', 'allocator'])
    digits = '.2f' if set(runs.device) == {'cpu'} else '.4f'  # a GPU takes milliseconds
    seconds, memory = (by.seconds.median().unstack(), digits), (by.memory.max().unstack() / 1e6, '.0f')
    columns = {
        '224², s': (*seconds, 224, False),
        '800×1344, s': (*seconds, 800, False),
        '800×1344, MB': (*memory, 800, False),
        'training step, s': (*seconds, 800, True),
        'training step, MB': (*memory, 800, True),
    }
    allocators = [name for name in ALLOCATORS if name in set(runs.allocator)]
    cases = pd.MultiIndex.from_product((OVERVIEW, (224, 800), (False, True)))
    if runs.empty or seconds[0].reindex(cases).isna().any(axis=None):
        return ''

    def cell(model: str, values: pd.DataFrame, digits: str, height: int, backward: bool) -> str:
        return ' / '.join(format(one, digits) for one in values.loc[(model, height, backward), allocators])

    rows = [[contender(model).label, *(cell(model, *column) for column in columns.values())] for model in OVERVIEW]
    return markdown(rows, ('', *columns))


def costs(measured: str, runs: pd.DataFrame) -> str:
    """Seconds and peak memory by contender, size and allocator; and the times as multiples of rivals'."""
    runs = runs[(runs['dtype'] == runs['dtype'].iloc[0]) & ~runs.model.str.match(f'tiny_|.*{GAIN}')]
    models = runs.groupby(['height', 'width']).model.transform('nunique')
    runs = runs[2 * models >= models.max()]  # other sizes are for the plot alone
    cells: dict[str, dict[str, str]] = {}
    relative: dict[str, dict[str, str]] = {}
    for (model, *size, dtype, allocator), some in runs[runs.backward == MEASURED[measured][1]].groupby(
        ['model', 'height', 'width', 'dtype', 'allocator'], sort=False
    ):
        label, _, rival = contender(model)
        column = f'{size[0]}² {allocator}' if size[0] == size[1] else f'{size[0]}×{size[1]} {allocator}'
        memory = f'{some.memory.max() / 1e6:.0f} MB'
        cells.setdefault(label, {})[column] = f'{_spread(some.seconds, _seconds)}, {memory}'
        for other in (rival, 'swin_tiny', 'resnet50') if rival else ():
            found = ratios(runs, measured, Run(model, *size, dtype), Run(other, *size, dtype))
            if allocator in found:
                versus = f'{label} : {contender(other).label}'
                relative.setdefault(versus, {})[column] = _spread(found[allocator])
    tables = (pd.DataFrame.from_dict(table, orient='index').fillna('–') for table in (cells, relative) if table)
    return '\n\n'.join(table.to_markdown(disable_numparse=True) for table in tables)


def _spread(numbers: pd.Series, show: Callable[[float], str] = '{:.2f}'.format) -> str:
    """The median, and the largest if there are several."""
    return show(numbers.median()) + (f' ({show(numbers.max())})' if len(numbers) > 1 else '')


def _seconds(seconds: float) -> str:
    return '–' if seconds != seconds else f'{seconds:.2f} s' if seconds >= 0.1 else f'{1e3 * seconds:.1f} ms'


PARTS: dict[str, tuple[str, Callable[[pd.DataFrame], str]]] = dict(
    conditions=('# Backbones side by side', conditions),
    overview=('## Overview', overview),
    short=('## In short', short_text),
    targets=('## Targets', targets_text),
    evaluation=('## Evaluation: forward', partial(costs, 'time')),
    training=('## Training: forward + backward', partial(costs, 'training step')),
    ablations=("## The papers' ablations", ablations_text),
)
"""Of the report, and those that are marked on the page: a heading, and what makes Markdown of the runs."""
