"""The results: one JSON file with a record for each training, and the tables that pages show of it.

A page holds ``<!-- evidence NAME … -->`` and ``<!-- end -->`` around each table; a name is a table or a row. Around a
table of the papers it holds ``<!-- compared CONFIG=ROW … -->``, whose sizes are those of the model zoo.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mmsoft.attention.measure import stage_of
from mmsoft.utils.files import atomic_write

from ..common import ROOT, fill_page, markdown, spread
from ..zoo import load_sizes, published_models, size_rows
from .rows import ROWS, select

Record = dict[str, Any]
FILE = 'data/evidence.json'
CHANCE = {
    **dict.fromkeys(('box AP50', 'box AP', 'mask AP50', 'mask AP'), 0.02),
    'PQ': 0.15,
    'mIoU': 0.02,
    'top-1': 0.17,
    'accuracy': 0.5,
}
"""Scores of guesses: true boxes and masks with random classes (for PQ true stuff); one class everywhere; for all."""


def load(docs: Path) -> list[Record]:
    """The published records; none if there is no store."""
    file = docs / FILE
    return json.loads(file.read_text()) if file.is_file() else []


def merge(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Records of rows that exist as they are now, the new ones in place of those of the same training."""
    records = {(one['row'], one['seed']): one for one in (*old, *new)}
    current = {key: one for key, one in records.items() if key[0] in ROWS and ROWS[key[0]].key == one['key']}
    return [current[key] for key in sorted(current, key=lambda key: ([*ROWS].index(key[0]), key[1]))]


def publish(docs: Path, records: Sequence[Record]) -> None:
    """Writes the store and the marked tables of the pages."""
    records = json.loads(json.dumps(records), parse_float=lambda number: float(f'{float(number):.4g}'))
    lines = ',\n'.join(json.dumps(one, ensure_ascii=False) for one in records)
    with atomic_write(docs / FILE) as file:
        file.write(f'[\n{lines}\n]\n'.encode())
    for page in sorted(docs.glob('*.md')):
        fill_page(
            page,
            evidence=lambda names: table([*select(names.split())], records),
            compared=lambda pairs: compared(pairs.split(), records, docs),
        )


def compared(pairs: Sequence[str], records: Iterable[Record], docs: Path) -> str:
    """Markdown of configs: sizes counted and printed, the papers' scores, and the far task of a small network."""
    published = published_models(ROOT / 'model-index.yml')
    sizes = size_rows(load_sizes(docs), published)
    lines = []
    for config, _, name in (pair.partition('=') for pair in pairs):
        parameters, printed, _, flops, flops_printed = sizes[config]
        score = published.get(config, {}).get('Scores', {}).get('Top 1 Accuracy', '–')
        some = [one for one in records if one['row'] == name]
        far = [spread(one[kind]['accuracy'] for one in some) for kind in ('scores', 'without_attention')]
        link = f'[{config}](../configs/{config}.py)'
        own = (one or '–' for one in (*far, _learned(some)))
        lines.append((link, parameters, printed, flops, flops_printed, score, *own))
    sizes_header = ('config', 'parameters, M', 'paper', 'GFLOPs', 'paper', 'top-1, paper')
    return markdown(lines, (*sizes_header, 'far task', 'without attention', 'learned after'))


def table(names: Sequence[str], records: Sequence[Record]) -> str:
    """Markdown of the rows that have results: means over seeds, and minimum and maximum; empty columns are left out."""
    found = {name: [one for one in records if one['row'] == name] for name in names}
    found = {name: some for name, some in found.items() if some}
    scores = dict.fromkeys(score for some in found.values() for score in some[0]['scores'])
    scores = sorted(scores, key=lambda score: [*CHANCE, score].index(score))
    first = {name: min(some[0]['scores'], key=scores.index, default='') for name, some in found.items()}
    same = len({*first.values()}) == 1
    lines = [_cells(name, some, scores, first[name], same) for name, some in found.items()]
    if scores:
        lines.append({'': '*chance*', **{score: f'{CHANCE[score]:.2f}' for score in scores if score in CHANCE}})
    cells = pd.DataFrame(lines).fillna('')
    cells = cells.loc[:, (cells != '').any()]
    return markdown(cells.to_numpy(), [*cells]) if lines else ''


def _cells(name: str, some: Sequence[Record], scores: Sequence[str], first: str, same: bool) -> dict[str, str]:
    """The columns of a row, from its records. The control is of its ``first`` score, ``same`` if this is all rows'."""
    steepest = [one['steepest'] for one in some if ROWS[name].table == 'depth']
    watched = 'course' in some[0]
    return {
        '': ROWS[name].title,
        'parameters, M': spread((one.get('parameters') for one in some), 1, 1e-6),
        'iterations': str(some[0]['iterations']),
        'seeds': str(len(some)),
        **{score: spread(one['scores'].get(score) for one in some) for score in scores},
        f'without attention, {first}' if same else 'first score without attention': spread(
            (one['without_attention'] or {}).get(first) for one in some
        ),
        'learned after': _learned(some),
        'largest gradient': spread(steepest, 0),
        'exponents before': _course(some, 'exponent', 0),
        'exponents after': _course(some, 'exponent', -1),
        'gradients before': _course(some, 'gradient', 0),
        'gradients after': _course(some, 'gradient', -1),
        'shares before': _course(some, 'share', 0),
        'shares after': _course(some, 'share', -1),
        'share by stage': '' if watched else _shares(some),
    }


def _learned(records: Sequence[Record]) -> str:
    """Iterations after which the loss of the far task is half of chance's, for each seed."""
    return ', '.join(str(one['learned'] or 'never') for one in records if 'learned' in one)


def _shares(records: Sequence[Record]) -> str:
    """Of each stage, the share of the block that has most, with the seed that has least."""
    rows = [(one['seed'], stage_of(name), share or 0.0) for one in records for name, share in one['shares'].items()]
    shares = pd.DataFrame(rows, columns=['seed', 'stage', 'share'])
    return _by_stage(shares.groupby(['seed', 'stage']).share.max().groupby('stage').min())


def _course(records: Sequence[Record], key: str, time: int) -> str:
    """Of each stage, the mean over blocks and seeds of what was measured at a time of the training."""
    courses = [item for one in records for item in one.get('course', {}).items()]
    rows = [(stage_of(name), course[key][time]) for name, course in courses if key in course]
    return _by_stage(pd.DataFrame(rows, columns=['stage', 'value']).groupby('stage').value.mean())


def _by_stage(values: pd.Series) -> str:
    return ' / '.join(f'{value:.2g}' for value in values)
