"""The results: one JSON file with a record for each training, and the tables that pages show of it.

A page holds ``<!-- evidence NAME … -->`` and ``<!-- end -->`` around each table; a name is a table or a row. Around a
table of the papers it holds ``<!-- compared CONFIG=ROW … -->``, whose sizes are those of the model zoo.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
from tabulate import tabulate

from mmsoft.attention.measure import stage_of
from mmsoft.utils.files import atomic_write

from ..common import ROOT
from ..zoo import published_models, size_rows
from .rows import ROWS, select

Record = dict[str, Any]
FILE = 'data/evidence.json'
MARKED = re.compile(r'(<!-- (evidence|compared) ([\w= ]+) -->\n).*?(<!-- end -->)', re.S)


CHANCE = {**dict.fromkeys(('box AP50', 'box AP', 'mask AP50', 'mask AP', 'mIoU'), 0.02), 'top-1': 0.17, 'accuracy': 0.5}
"""Scores of guesses: true boxes and masks with random classes; the best single class everywhere; one class for all."""


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
    records = [_rounded(one) for one in records]
    lines = ',\n'.join(json.dumps(one, ensure_ascii=False) for one in records)
    with atomic_write(docs / FILE) as file:
        file.write(f'[\n{lines}\n]\n'.encode())
    for page in sorted(docs.glob('*.md')):
        text = page.read_text()

        def fill(found: re.Match) -> str:
            names = found[3].split()
            made = table([*select(names)], records) if found[2] == 'evidence' else compared(names, records, docs)
            return f'{found[1]}{made}\n{found[4]}'

        filled = MARKED.sub(fill, text)
        if filled != text:
            page.write_text(filled)
            print(f'{page} is written.')


def compared(pairs: Sequence[str], records: Iterable[Record], docs: Path) -> str:
    """Markdown of configs: sizes counted and printed, the papers' scores, and the far task of a small network."""
    published = published_models(ROOT / 'model-index.yml')
    sizes = size_rows(docs, published)
    lines = []
    for config, _, name in (pair.partition('=') for pair in pairs):
        parameters, printed, _, flops, flops_printed = sizes[config]
        score = published.get(config, {}).get('Scores', {}).get('Top 1 Accuracy', '–')
        some = [one for one in records if one['row'] == name]
        far = _spread(one['scores']['accuracy'] for one in some) or '–'
        link = f'[{config}](../configs/{config}.py)'
        lines.append((link, parameters, printed, flops, flops_printed, score, far, _learned(some) or '–'))
    header = ('config', 'parameters, M', 'paper', 'GFLOPs', 'paper', 'top-1, paper', 'far task', 'learned after')
    return tabulate(lines, header, tablefmt='github', disable_numparse=True)


def table(names: Sequence[str], records: Iterable[Record]) -> str:
    """Markdown of the rows that have results: means over seeds, and minimum and maximum; empty columns are left out."""
    found: dict[str, list[Record]] = {name: [] for name in names}
    for one in records:
        if one['row'] in found:
            found[one['row']].append(one)
    rows = {name: some for name, some in found.items() if some}
    found_scores = dict.fromkeys(score for some in rows.values() for score in some[0]['scores'])
    scores = sorted(found_scores, key=lambda score: [*CHANCE].index(score) if score in CHANCE else len(CHANCE))
    if not rows:
        return ''
    first = {name: next((score for score in scores if score in some[0]['scores']), '') for name, some in rows.items()}
    kinds = {*first.values()}
    control = f'without attention, {kinds.pop()}' if len(kinds) == 1 else 'first score without attention'
    columns: dict[str, Callable[[str, list[Record]], str]] = {
        '': lambda name, some: ROWS[name].title,
        'parameters, M': lambda name, some: _spread((one.get('parameters') for one in some), 1, 1e-6),
        'iterations': lambda name, some: str(some[0]['iterations']),
        'seeds': lambda name, some: str(len(some)),
        **{
            score: lambda name, some, score=score: _spread(one['scores'].get(score) for one in some) for score in scores
        },
        control: lambda name, some: _spread((one['without_attention'] or {}).get(first[name]) for one in some),
        'learned after': lambda name, some: _learned(some),
        'largest gradient': lambda name, some: _spread(
            (one['steepest'] for one in some if ROWS[name].table.startswith('depth')), 0
        ),
        'exponents before': lambda name, some: _course(some, 'exponent', 0),
        'exponents after': lambda name, some: _course(some, 'exponent', -1),
        'gradients before': lambda name, some: _course(some, 'gradient', 0),
        'gradients after': lambda name, some: _course(some, 'gradient', -1),
        'shares before': lambda name, some: _course(some, 'share', 0),
        'shares after': lambda name, some: _course(some, 'share', -1),
        'share by stage': lambda name, some: '' if 'course' in some[0] else _shares(some),
    }
    cells = [[column(name, some) for column in columns.values()] for name, some in rows.items()]
    chance = (
        dict.fromkeys(columns, '')
        | {'': '*chance*'}
        | {name: f'{CHANCE[name]:.2f}' for name in scores if name in CHANCE}
    )
    cells += [[*chance.values()]] * bool(scores)
    kept = [i for i in range(len(columns)) if any(line[i] for line in cells)]
    header = [name for i, name in enumerate(columns) if i in kept]
    return tabulate([[line[i] for i in kept] for line in cells], header, tablefmt='github', disable_numparse=True)


def _spread(values: Iterable[Optional[float]], digits: int = 3, unit: float = 1.0) -> str:
    """The mean over seeds, and minimum and maximum if there are several."""
    known = [unit * value for value in values if value is not None]
    if not known:
        return ''
    low, middle, high = (f'{value:.{digits}f}' for value in (min(known), np.mean(known), max(known)))
    return middle if low == high else f'{middle} ({low}–{high})'


def _learned(records: Sequence[Record]) -> str:
    """Iterations after which the loss of the far task is half of chance's, for each seed."""
    return ', '.join(str(one['learned'] or 'never') for one in records if 'learned' in one)


def _shares(records: Sequence[Record]) -> str:
    """Of each stage, the share of the block that has most, with the seed that has least."""
    least: dict[int, float] = {}
    for one in records:
        most: dict[int, float] = defaultdict(float)
        for name, share in one['shares'].items():
            most[stage_of(name)] = max(most[stage_of(name)], share or 0.0)
        least = {stage: min(share, least.get(stage, share)) for stage, share in most.items()}
    return ' / '.join(f'{share:.2g}' for share in least.values())


def _course(records: Sequence[Record], key: str, time: int) -> str:
    """Of each stage, the mean over blocks and seeds of what was measured at a time of the training."""
    values: dict[int, list[float]] = defaultdict(list)
    for one in records:
        for name, course in one.get('course', {}).items():
            values[stage_of(name)] += [course[key][time]] if key in course else []
    return ' / '.join(f'{np.mean(some):.2g}' for some in values.values() if some)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):  # of the course of a training
        return [float(f'{one:.3g}') for one in value]
    return float(f'{value:.4g}') if isinstance(value, float) else value
