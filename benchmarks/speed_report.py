"""Runs of the benchmark as tables: medians over rounds, and the slowest."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

import pandas as pd

from .common import write_table
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
MARKED = re.compile(r'(<!-- benchmark (\w+) -->\n).*?(<!-- end -->)', re.S)


def write_report(runs: pd.DataFrame, out_dir: Path) -> Path:
    """Writes ``benchmark.md`` of what :func:`run_benchmark` returns, and returns the file."""
    texts = report_texts(runs)
    titles = dict(conditions='# Backbones side by side', **{name: f'## {title}' for name, title in TITLES.items()})
    report = out_dir / 'benchmark.md'
    report.write_text('\n\n'.join(f'{titles[name]}\n\n{text}' for name, text in texts.items()) + '\n')
    return report


def report_texts(runs: pd.DataFrame) -> dict[str, str]:
    """Conditions and failures, and what was measured by :data:`TITLES`, as Markdown."""
    one = runs.iloc[0]
    notes = runs[runs.note.fillna('') != ''] if 'note' in runs else runs[:0]
    texts = dict(
        conditions=f'{one.machine}, {one.device}, {one.threads} threads, {one["dtype"]}, batch {one.batch}, torch '
        f'{one.torch}{", compiled" * bool(one["compile"])}, commit {one.commit}. Medians over interleaved rounds / the '
        'largest of them. Memory is the peak above weights and image.'
        + ''.join(f'\n* {_label(run.model)}, {run.height}×{run.width}: {run.note}' for run in notes.itertuples())
    )
    texts.update(short=short_text(runs), targets=targets_text(runs), ablations=ablations_text(runs))
    main = runs[(runs['dtype'] == one['dtype']) & ~runs.model.str.match(f'tiny_|.*{GAIN}')]
    models = main.groupby(['height', 'width']).model.transform('nunique')
    main = main[2 * models >= models.max()]  # other sizes are for the plot alone
    for name, backward in (('evaluation', False), ('training', True)):
        chosen = main[main.backward == backward]
        if len(chosen):
            each = ratios(chosen)
            each['model'] = each.model.map(_label) + ' : ' + each.rival.map(_label)
            ratio_table = _wide(each.groupby(['model', *SIZE], sort=False).ratio.agg(_spread))
            texts[name] = '\n\n'.join(filter(None, (cost_table(chosen), ratio_table)))
    return {name: texts[name] for name in ('conditions', *TITLES) if texts.get(name)}


def publish(runs: pd.DataFrame, docs: Path) -> None:
    """Writes ``data/benchmark.csv``, the marked parts of ``benchmark.md``, and the figures by ``figures/speed.py``."""
    write_table(runs, docs / 'data/benchmark.csv')
    fill_page(docs / 'benchmark.md', page_texts(runs))
    subprocess.run([sys.executable, docs / 'figures/speed.py'], check=True)


def page_texts(runs: pd.DataFrame) -> dict[str, str]:
    """:func:`report_texts` for the page, whose own headings need something below them."""
    texts = report_texts(runs)
    for name in ('targets', 'ablations'):
        texts[name] = f'## {TITLES[name]}\n\n{texts[name]}' if name in texts else ''
    return dict(dict.fromkeys(TITLES, ''), **texts)


def fill_page(page: Path, texts: dict[str, str]) -> None:
    """Writes texts by their names between the lines ``<!-- benchmark NAME -->`` and ``<!-- end -->`` of a page."""

    def fill(found: re.Match) -> str:
        return f'{found[1]}{texts[found[2]]}\n{found[3]}' if found[2] in texts else found[0]

    page.write_text(MARKED.sub(fill, page.read_text()))


def cost_table(runs: pd.DataFrame) -> str:
    """Seconds and peak memory by contender, size and allocator."""
    return _wide(
        runs.groupby(['model', *SIZE], sort=False)[['seconds', 'memory']].apply(
            lambda case: f'{_spread(case.seconds, _seconds)}, {case.memory.max() / 1e6:.0f} MB'
        )
    )


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
    if cells.empty:
        return ''
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
