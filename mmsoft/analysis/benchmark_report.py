"""The benchmark's records as Markdown, CSV and JSON."""
import csv
import json
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import numpy as np

from .benchmark import Record, pass_name, size_name
from .benchmark_plots import plot_costs
from .contenders import ENTRANTS

# Below 512², what does not depend on the image's size is too large a part of the time.
LARGE = 128 * 128


def write_report(records: Sequence[Record],
                 out_dir: Path,
                 machine: Dict[str, str],
                 accuracy: str = '',
                 rate: Optional[float] = None) -> Path:
    """Writes ``benchmark.{md,csv,json}``, ``time.png`` and ``memory.png``.

    Args:
        records (Sequence[Record]): What was measured.
        out_dir (Path): Folder, made if needed.
        machine (dict[str, str]): Description by subject.
        accuracy (str): A section to append. Defaults to none.
        rate (float, optional): Multiply-accumulates a second that the device reaches on large matrices.

    Returns:
        Path: The Markdown file.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    rows = [record.as_dict() for record in records]
    (out_dir / 'benchmark.json').write_text(json.dumps(dict(machine=machine, records=rows), indent=1))
    with open(out_dir / 'benchmark.csv', 'w', newline='') as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(dict(row, size='{}x{}'.format(*row['size'])) for row in rows)
    plots = plot_costs(records, out_dir)
    sections = ['# Backbones side by side', '\n'.join(f'* {key}: {value}' for key, value in machine.items())]
    for backward in sorted({record.backward for record in records}):
        chosen = [record for record in records if record.backward == backward]
        sections += [f'## {pass_name(backward).capitalize()}', _cost_table(chosen), _rival_table(chosen)]
    if rate and any(record.flops for record in records):
        sections.append(_rate_table(records, rate))
    sections += [accuracy, *(f'![{path.stem} against tokens]({path.name})' for path in plots)]
    report = out_dir / 'benchmark.md'
    report.write_text('\n\n'.join(filter(None, sections)) + '\n')
    return report


def growth(records: Sequence[Record], quantity: str) -> Optional[float]:
    """Exponent e of n in ``quantity ~ n^e``, fitted to one contender's records from 512² up, or to all if too few.

    Args:
        records (Sequence[Record]): Records of one contender and pass.
        quantity (str): ``'median'`` (of the seconds) or ``'memory'``.

    Returns:
        float or None: None with fewer than two sizes.
    """
    points = [(record.tokens, getattr(record, quantity)) for record in records if getattr(record, quantity)]
    large = [point for point in points if point[0] >= LARGE]
    points = large if len(large) > 1 else points
    if len({tokens for tokens, _ in points}) < 2:
        return None
    return float(np.polyfit(*np.log(points).T, 1)[0])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ['---'] * len(header), *rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _cost_table(records: Sequence[Record]) -> str:
    """Seconds, spread and memory by contender and size."""
    rows = []
    for model, by_size in _by_model(records).items():
        exponents = (growth(list(by_size.values()), quantity) for quantity in ('median', 'memory'))
        rows.append([
            ENTRANTS[model].label, *(_cost(record) for record in by_size.values()),
            *('–' if exponent is None else f'{exponent:.2f}' for exponent in exponents)
        ])
    legend = ('Median of the repeats ± half their range, and peak memory above weights and image. The exponents are '
              'of n in time and memory, from 512² up.')
    header = ['backbone', *map(size_name, _sizes(records)), 'time ~ n^', 'memory ~ n^']
    return f'{legend}\n\n{markdown_table(header, rows)}'


def _rival_table(records: Sequence[Record]) -> str:
    """Time and memory as a multiple of the rival's."""
    by_model, rows = _by_model(records), []
    for model, by_size in by_model.items():
        rival = ENTRANTS[model].rival
        if rival in by_model:
            ratios = [_ratios(record, by_model[rival][size]) for size, record in by_size.items()]
            rows.append([ENTRANTS[model].label, ENTRANTS[rival].label, *ratios])
    if not rows:
        return ''
    header = ['backbone', 'relative to', *map(size_name, _sizes(records))]
    return f'Time, memory as multiples of the rival\'s:\n\n{markdown_table(header, rows)}'


def _rate_table(records: Sequence[Record], rate: float) -> str:
    """Share of the device's rate, from the multiply-accumulates without SOFT's inverse."""
    records = [record for record in records if not record.backward]
    rows = [[ENTRANTS[model].label, *(_share(record, rate) for record in by_size.values())]
            for model, by_size in _by_model(records).items()]
    header = ['backbone', *map(size_name, _sizes(records))]
    return (f'## Share of the device\'s matrix rate\n\nForward, of {2 * rate / 1e12:.1f} TFLOP/s on a large product; '
            f'SOFT\'s inverse is not counted as work.\n\n{markdown_table(header, rows)}')


def _cost(record: Record) -> str:
    parts = []
    if record.seconds:
        time = f'{record.median:.2f} s' if record.median >= 0.1 else f'{1e3 * record.median:.1f} ms'
        parts.append(f'{time} ±{record.spread:.0%}' if len(record.seconds) > 1 else time)
    if record.memory is not None:
        parts.append(f'{record.memory / 1e6:.0f} MB')
    return ', '.join(parts + [record.note] if record.note else parts).replace('|', '/')


def _ratios(record: Record, rival: Record) -> str:
    parts = [(record.median, rival.median), (record.memory, rival.memory)]
    return ', '.join(f'{mine / theirs:.2f}' if mine and theirs else '–' for mine, theirs in parts)


def _share(record: Record, rate: float) -> str:
    return f'{record.flops / record.median / rate:.1%}' if record.flops and record.seconds else '–'


def _by_model(records: Sequence[Record]) -> Dict[str, Dict]:
    """Records by contender and size."""
    models: Dict[str, Dict] = {}
    for record in records:
        models.setdefault(record.model, {})[record.size] = record
    return models


def _sizes(records: Sequence[Record]) -> List:
    return list(dict.fromkeys(record.size for record in records))
