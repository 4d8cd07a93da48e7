"""The results: one JSON file with a record for each run, and the tables that pages show of it.

A page holds ``<!-- evidence NAME … -->`` and ``<!-- end -->`` around each table. A name is a row, or a part of
:data:`PARTS`. Everything else on the page is written by hand.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Callable, NamedTuple, Optional

from tabulate import tabulate

from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write

from .networks import NETWORKS
from .recipe import SCORES
from .rows import METHODS, ROWS, Row

Record = dict[str, Any]
FILE = 'data/evidence.json'
KINDS = {kind: [*names.values()] for kind, names in zip(('detectors', 'segmenters', 'classifiers'), SCORES.values())}
PARTS = [*KINDS, *(f'{kind}_compared' for kind in KINDS)]
"""Tables of all rows with two networks, and of those with one."""
MARKED = re.compile(r'(<!-- evidence ([\w ]+) -->\n).*?(<!-- end -->)', re.S)


CHANCE = {'box AP50': 0.04, 'box AP': 0.04, 'mask AP50': 0.04, 'mask AP': 0.04, 'mIoU': 0.02, 'top-1': 0.17}
"""Scores of guesses: true boxes and masks with random classes; the best single class everywhere; one class for all."""


class Store(NamedTuple):
    """Records of runs."""

    records: Sequence[Record] = ()

    @classmethod
    def load(cls, docs: Path) -> 'Store':
        """The published store; an empty one if there is none."""
        file = docs / FILE
        return cls(json.loads(file.read_text())) if file.is_file() else cls()

    def merge(self, other: 'Store') -> 'Store':
        """This store with the records of another, which replace those of the same run."""
        records = {(one['method'], one['backbone'], one['seed']): one for one in (*self.records, *other.records)}
        return Store([records[key] for key in sorted(records)])

    def publish(self, docs: Path) -> None:
        """Writes the store and the tables of the pages."""
        (docs / FILE).parent.mkdir(parents=True, exist_ok=True)
        lines = ',\n'.join(json.dumps(one, ensure_ascii=False) for one in self.records)
        with atomic_write(docs / FILE) as file:
            file.write(f'[\n{lines}\n]\n'.encode())
        for page in sorted(docs.glob('*.md')):
            text = page.read_text()
            filled = MARKED.sub(lambda found: f'{found[1]}{self._part(found[2].split())}\n{found[3]}', text)
            if filled != text:
                page.write_text(filled)
                print(f'{page} is written.')

    def _part(self, names: Sequence[str]) -> str:
        unknown = [name for name in names if name not in (*ROWS, *PARTS)]
        if unknown:
            raise UsageError(f'A page asks for the rows {", ".join(unknown)}, which do not exist.')
        rows = {}
        for name in names:
            kind, _, compared = name.partition('_')
            rows.update(
                {name: ROWS[name]}
                if name in ROWS
                else {
                    key: row
                    for key, row in ROWS.items()
                    if METHODS[row.method].kind == kind and bool(compared) == (row.theirs is None)
                }
            )
        return self.table(rows)

    def of(self, row: Row) -> list[list[Record]]:
        """For each network of a row, ours first, its records with all seeds."""
        return [
            [one for one in self.records if (one['method'], one['backbone']) == (row.method, network)]
            for network in row[1:]
            if network
        ]

    def table(self, rows: dict[str, Row]) -> str:
        """Markdown of the rows that have results, a table for each kind of method."""
        tables = []
        for kind, scores in KINDS.items():
            chosen = {name: row for name, row in rows.items() if METHODS[row.method].kind == kind and any(self.of(row))}
            if chosen:
                theirs = any(row.theirs for row in chosen.values())
                header = [
                    'row',
                    'method',
                    'ours',
                    *['theirs'] * theirs,
                    'parameters, M',
                    'iterations',
                    'seeds',
                    *scores,
                    f'without attention, {scores[0]}',
                ]
                lines = [self._line(name, row, scores, theirs) for name, row in chosen.items()]
                guessed = [f'{CHANCE[score]:.2f}' for score in scores]
                lines.append(['', '*chance*', *[''] * (len(header) - len(scores) - 3), *guessed, ''])
                tables.append(tabulate(lines, header, tablefmt='github', disable_numparse=True))
        return '\n\n'.join(tables)

    def _line(self, name: str, row: Row, scores: Sequence[str], theirs: bool) -> list[str]:
        found = self.of(row)
        first = next(filter(None, found))

        def cell(figure: Callable[[Record], Optional[float]], digits: int) -> str:
            """A figure of ours and theirs; a dash if there is none."""
            return ' / '.join(_spread((figure(one) for one in records), digits) for records in found)

        return [
            f'`{name}`',
            METHODS[row.method].title,
            *(NETWORKS[network].title for network in row[1:] if network),
            *[''] * (theirs and not row.theirs),
            cell(lambda one: one['parameters'] / 1e6, 1),
            str(first[0]['iterations']),
            str(len(first)),
            *(cell(lambda one: one['scores'].get(score), 3) if score in first[0]['scores'] else '' for score in scores),
            _spread(((one['without_attention'] or {}).get(scores[0]) for one in found[0]), 3),
        ]


def _spread(values: Iterable[Optional[float]], digits: int) -> str:
    """The mean over seeds, and minimum and maximum if there are several."""
    values = [value for value in values if value is not None]
    if not values:
        return '–'
    low, middle, high = (f'{value:.{digits}f}' for value in (min(values), mean(values), max(values)))
    return middle if low == high else f'{middle} ({low}–{high})'
