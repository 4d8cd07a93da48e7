"""Runs of the benchmark as tables: medians over rounds, and the slowest."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

import pandas as pd

from .common import fill_page, write_table
from .contenders import contender
from .targets import GAIN, ablations_text, short_text, targets_text

SIZE = ['height', 'width', 'allocator']
TITLES = dict(
    short='In short',
    targets='Targets',
    evaluation='Evaluation: forward',
    training='Training: forward + backward',
    ablations="The papers' ablations",
)


def write_report(runs: pd.DataFrame, out_dir: Path) -> Path:
    """Writes ``benchmark.md`` of what :func:`run_benchmark` returns, and returns the file."""
    titles = dict(conditions='# Backbones side by side', **{name: f'## {title}' for name, title in TITLES.items()})
    report = out_dir / 'benchmark.md'
    report.write_text('\n\n'.join(f'{titles[name]}\n\n{text}' for name, text in report_texts(runs).items()) + '\n')
    return report


def publish(runs: pd.DataFrame, docs: Path) -> None:
    """Writes ``data/benchmark.csv``, the marked parts of ``benchmark.md``, and the figures by ``figures/speed.py``."""
    write_table(runs, docs / 'data/benchmark.csv')
    fill_page(docs / 'benchmark.md', benchmark=page_texts(runs).get)
    subprocess.run([sys.executable, docs / 'figures/speed.py'], check=True)


def page_texts(runs: pd.DataFrame) -> dict[str, str]:
    """:func:`report_texts` for the page, whose own headings need something below them."""
    texts = report_texts(runs)
    for name in ('targets', 'ablations'):
        texts[name] = f'## {TITLES[name]}\n\n{texts[name]}' if name in texts else ''
    return dict(dict.fromkeys(TITLES, ''), **texts)


def report_texts(runs: pd.DataFrame) -> dict[str, str]:
    """Conditions and failures, and what was measured by :data:`TITLES`, as Markdown."""
    main = runs[(runs['dtype'] == runs['dtype'].iloc[0]) & ~runs.model.str.match(f'tiny_|.*{GAIN}')]
    models = main.groupby(['height', 'width']).model.transform('nunique')
    main = main[2 * models >= models.max()]  # other sizes are for the plot alone
    texts = dict(
        conditions=conditions(runs),
        short=short_text(runs),
        targets=targets_text(runs),
        evaluation=costs(main[main.backward.eq(False)]),
        training=costs(main[main.backward.eq(True)]),
        ablations=ablations_text(runs),
    )
    return {name: text for name, text in texts.items() if text}


def conditions(runs: pd.DataFrame) -> str:
    """What all runs have in common, and the runs that failed."""
    one = runs.iloc[0]
    notes = runs[runs.note.fillna('') != ''] if 'note' in runs else runs[:0]
    return (
        f'{one.machine}, {one.device}, {one.threads} threads, {one["dtype"]}, batch {one.batch}, torch {one.torch}'
        f'{", compiled" * bool(one["compile"])}, commit {one.commit}. Medians over interleaved rounds / the largest of '
        'them. Memory is the peak above weights and image.'
        + ''.join(f'\n* {_label(run.model)}, {run.height}×{run.width}: {run.note}' for run in notes.itertuples())
    )


def costs(runs: pd.DataFrame) -> str:
    """Seconds and peak memory by contender, size and allocator; and the times as multiples of rivals'."""
    if runs.empty:
        return ''
    by = runs.groupby(['model', *SIZE], sort=False)[['seconds', 'memory']]
    cells = by.apply(lambda case: f'{_spread(case.seconds, _seconds)}, {case.memory.max() / 1e6:.0f} MB')
    each = ratios(runs)
    each['model'] = each.model.map(_label) + ' : ' + each.rival.map(_label)
    relative = each.groupby(['model', *SIZE], sort=False).ratio.agg(_spread)
    return '\n\n'.join(_wide(some) for some in (cells, relative) if len(some))


def ratios(runs: pd.DataFrame, rivals: Sequence[str] = ('swin_tiny', 'resnet50')) -> pd.DataFrame:
    """Times as multiples of a rival's in the same round with the same allocator.

    Args:
        runs (DataFrame): Of :func:`run_benchmark`.
        rivals (Sequence[str]): Keys of what every contender with a rival is compared with besides.

    Returns:
        DataFrame: ``ratio`` by model, ``rival``, size, allocator and round.
    """
    own = [(model, contender(model).rival) for model in runs.model.unique() if contender(model).rival]
    own = pd.DataFrame(own, columns=['model', 'rival'])
    pairs = pd.concat([own, *(own.assign(rival=rival) for rival in rivals)])
    same = [*SIZE, 'backward', 'round']
    theirs = runs[['model', *same, 'seconds']].rename(columns=dict(model='rival', seconds='theirs'))
    joined = runs.merge(pairs, on='model').merge(theirs, on=['rival', *same])
    return joined.assign(ratio=joined.seconds / joined.theirs)


def _wide(cells: pd.Series) -> str:
    """Cells by model, size and allocator: a row for each model, a column for each size and allocator."""
    table = cells.unstack(SIZE, sort=False).reindex(cells.index.unique('model')).fillna('–')
    table.index = [_label(name) for name in table.index]
    table.columns = [
        f'{height}² {allocator}' if height == width else f'{height}×{width} {allocator}'
        for height, width, allocator in table.columns
    ]
    return table.to_markdown(disable_numparse=True)


def _spread(numbers: pd.Series, show: Callable[[float], str] = '{:.2f}'.format) -> str:
    """The median, and the largest if there are several."""
    return show(numbers.median()) + (f' / {show(numbers.max())}' if len(numbers) > 1 else '')


def _label(model: str) -> str:
    return model if ' : ' in model else contender(model).label


def _seconds(seconds: float) -> str:
    return '–' if seconds != seconds else f'{seconds:.2f} s' if seconds >= 0.1 else f'{1e3 * seconds:.1f} ms'
