"""The results: one JSON file with a record for each run, and the tables that pages show of it.

A page holds ``<!-- evidence NAME … -->`` and ``<!-- end -->`` around each table. A name is a row, or a part of
:data:`PARTS`. Everything else on the page is written by hand.
"""
import json
import re
from pathlib import Path
from statistics import mean
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

from matplotlib.figure import Figure
from tabulate import tabulate

from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write
from .rows import METHODS, ROWS, Row, Run

Record = Dict[str, Any]
FILE = 'data/evidence.json'
KEY = ('method', 'backbone', 'seed')
SCORES = {
    'detectors': ('box AP50', 'box AP', 'mask AP50', 'mask AP'),
    'segmenters': ('mIoU', ),
    'classifiers': ('top-1', ),
}
PARTS = [*SCORES, *(f'{kind}_compared' for kind in SCORES), 'norms']
"""Tables of all rows with two networks, of those with one, and of spectral norms."""
MARKED = re.compile(r'(<!-- evidence ([\w ]+) -->\n).*?(<!-- end -->)', re.S)


class Store(NamedTuple):
    """Records of runs, and the scores of guessing."""
    chance: Dict[str, float] = {}
    records: Sequence[Record] = ()

    @classmethod
    def load(cls, docs: Path) -> 'Store':
        """The published store; an empty one if there is none."""
        file = docs / FILE
        return cls(**json.loads(file.read_text())) if file.is_file() else cls()

    def merge(self, other: 'Store') -> 'Store':
        """This store with the records of another, which replace those of the same run."""
        records = {tuple(one[key] for key in KEY): one for one in (*self.records, *other.records)}
        return Store(other.chance or self.chance, [records[key] for key in sorted(records)])

    def publish(self, docs: Path, work_dir: Optional[Path] = None) -> List[Path]:
        """Writes the store, the tables of the pages and the plot of losses; returns what was written."""
        (docs / 'images').mkdir(parents=True, exist_ok=True)
        (docs / FILE).parent.mkdir(exist_ok=True)
        lines = ',\n'.join(json.dumps(one, ensure_ascii=False) for one in self.records)
        with atomic_write(docs / FILE) as file:
            file.write(f'{{"chance": {json.dumps(self.chance)},\n"records": [\n{lines}\n]}}\n'.encode())
        written = [docs / FILE]
        for page in sorted(docs.glob('*.md')):
            text = page.read_text()
            filled = MARKED.sub(lambda found: f'{found[1]}{self._part(found[2].split())}\n{found[3]}', text)
            if filled != text:
                page.write_text(filled)
                written.append(page)
        if any(one.get('losses') for one in self.records):
            written.append(docs / 'images/evidence_losses.png')
            self.plot_losses(written[-1])
        return written

    def _part(self, names: Sequence[str]) -> str:
        unknown = [name for name in names if name not in (*ROWS, *PARTS)]
        if unknown:
            raise UsageError(f'A page asks for the rows {", ".join(unknown)}, which do not exist.')
        if names == ['norms']:
            return self.norms()
        rows = {}
        for name in names:
            kind, _, compared = name.partition('_')
            rows.update({name: ROWS[name]} if name in ROWS else {
                key: row for key, row in ROWS.items()
                if METHODS[row.ours.method].kind == kind and bool(compared) == (row.host is None)})
        return self.table(rows)

    def of(self, run: Optional[Run]) -> List[Record]:
        """Records of a run with all its seeds."""
        return [one for one in self.records if run and (one['method'], one['backbone']) == (run.method, run.backbone)]

    def table(self, rows: Dict[str, Row]) -> str:
        """Markdown of the rows that have results, a table for each kind of method."""
        tables = []
        for kind, scores in SCORES.items():
            chosen = {name: row for name, row in rows.items()
                      if METHODS[row.ours.method].kind == kind and any(map(self.of, row.runs))}
            if chosen:
                pairs = any(row.host for row in chosen.values())
                header = ['row', 'method', 'ours', *(['theirs'] if pairs else []), 'parameters, M', 'iterations',
                          'CPU minutes', 'seeds', *scores, f'without attention, {scores[0]}']
                lines = [self._line(name, row, scores, pairs) for name, row in chosen.items()]
                guessed = [f'{self.chance[score]:.2f}' if score in self.chance else '' for score in scores]
                lines.append(['', '*chance*', *[''] * (len(header) - len(scores) - 3), *guessed, ''])
                tables.append(tabulate(lines, header, tablefmt='github', disable_numparse=True))
        return '\n\n'.join(tables)

    def _line(self, name: str, row: Row, scores: Sequence[str], pairs: bool) -> List[str]:
        found = [self.of(run) for run in row.runs]

        def cell(figure: Callable[[Record], Optional[float]], digits: int) -> str:
            """A figure of ours and theirs; a dash if there is none."""
            return ' / '.join(_spread([figure(one) for one in records], digits) for records in found)

        ours = next(filter(None, found))
        return [
            f'`{name}`', row.title, *row.networks, *[''] * (pairs and not row.host),
            cell(lambda one: one['parameters'] / 1e6, 1), cell(lambda one: one['iterations'], 0).split(' / ')[0],
            cell(lambda one: one['cpu_minutes'], 1), str(len(ours)),
            *(cell(lambda one: one['scores'].get(score), 3) if score in ours[0]['scores'] else '' for score in scores),
            _spread([(one.get('without_attention') or {}).get(scores[0]) for one in found[0]], 3)
        ]

    def norms(self) -> str:
        """Markdown of the spectral norms of SOFT's attention in the classifiers."""
        lines = [[one['backbone'], one['seed'], f'{side}²', *(f'{norm:.3g}' for norm in norms)]
                 for one in self.records for side, norms in (one.get('norms') or {}).items()]
        header = ['network', 'seed', 'image', 'stage 1', 'stage 2', 'stage 3']
        return tabulate(lines, header, tablefmt='github', disable_numparse=True)

    def plot_losses(self, path: Path) -> None:
        """Draws a panel for each row with results: losses against iterations, ours in red, theirs in grey."""
        rows = {name: row for name, row in ROWS.items() if any(one.get('losses') for one in self.of(row.ours))}
        columns = min(6, len(rows))
        height = -(-len(rows) // columns)
        figure = Figure(figsize=(2.6 * columns, 1.9 * height), layout='constrained')
        panels = figure.subplots(height, columns, squeeze=False).flat
        for panel, (name, row) in zip(panels, rows.items()):
            for run, colour in ((row.host, '#888888'), (row.ours, '#d62728')):
                for one in self.of(run):
                    panel.plot(*zip(*one.get('losses') or [(1, float('nan'))]), color=colour, linewidth=1)
            panel.set_yscale('log')
            panel.set_title(name, fontsize=8)
            panel.tick_params(labelsize=6, which='both')
        for panel in figure.axes[len(rows):]:
            panel.set_visible(False)
        figure.savefig(path, dpi=110)


def _spread(values: Iterable[Optional[float]], digits: int) -> str:
    """The mean over seeds, and minimum and maximum if there are several."""
    values = [value for value in values if value is not None]
    if not values:
        return '–'
    low, middle, high = (f'{value:.{digits}f}' for value in (min(values), mean(values), max(values)))
    return middle if low == high else f'{middle} ({low}–{high})'
