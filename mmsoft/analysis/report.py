"""The benchmark's runs as tables and plots: the median over weights and pictures, and the worst."""
import re
from pathlib import Path
from typing import List, Sequence

import pandas as pd
from torch.utils.collect_env import get_pretty_env_info

from .contenders import CONTENDERS

CASE = ['model', 'weights', 'picture', 'height', 'width', 'backward']
GROUP = ['height', 'width', 'backward']


def write_report(runs: pd.DataFrame, out_dir: Path, sections: Sequence[str] = ()) -> Path:
    """Writes ``benchmark.md``, ``environment.txt`` and the plots.

    Args:
        runs (DataFrame): Of :func:`run_benchmark`.
        out_dir (Path): Folder that exists.
        sections (Sequence[str]): Markdown to append.

    Returns:
        Path: The Markdown file.
    """
    environment = get_pretty_env_info()
    (out_dir / 'environment.txt').write_text(environment)
    machine = re.search(r'Model name:\s*(.*)', environment)
    parts = [
        '# Backbones side by side', f'{machine.group(1) if machine else "unknown processor"}; the environment '
        'is in environment.txt. Of each backbone, the median over weights and pictures / the worst of them.'
    ]
    for backward in sorted(runs.backward.unique()):
        chosen = runs[runs.backward == backward]
        parts += [
            f'## {"Training: forward + backward" if backward else "Evaluation: forward"}',
            cost_table(chosen),
            ratio_table(chosen)
        ]
    parts += [condition_table(runs), *sections]
    parts += [
        f'![{name} against tokens]({plot(runs, name, out_dir).name})' for name in ('seconds', 'memory')
        if runs[name].notna().any()
    ]
    report = out_dir / 'benchmark.md'
    report.write_text('\n\n'.join(filter(None, parts)) + '\n')
    return report


def cost_table(runs: pd.DataFrame) -> str:
    """Seconds and peak memory by contender and size."""
    each = runs.groupby(CASE, sort=False)[['seconds', 'memory']].median().reset_index()
    table = each.groupby(['model', 'height', 'width'], sort=False).agg(
        median=('seconds', 'median'), worst=('seconds', 'max'), memory=('memory', 'max'), cases=('seconds', 'size'))
    cells = table.apply(
        lambda row: _seconds(row['median']) + (f' / {_seconds(row.worst)}'
                                               if row.cases > 1 else '') + (f', {row.memory / 1e6:.0f} MB'
                                                                            if row.memory == row.memory else ''),
        axis=1)
    return _wide(cells)


def ratios(runs: pd.DataFrame, rivals: Sequence[str] = ('swin_tiny', 'resnet50')) -> pd.DataFrame:
    """Times as multiples of the rival's in the same round, the median over rounds.

    Args:
        runs (DataFrame): Of :func:`run_benchmark`.
        rivals (Sequence[str]): Keys to hold every contender with a rival of its own against as well.

    Returns:
        DataFrame: ``ratio`` by case and ``rival``.
    """
    first = runs[['model']].drop_duplicates()
    first['rival'] = first.model.map(lambda model: CONTENDERS[model].rival)
    first = first.dropna()
    pairs = pd.concat([first, *(first.assign(rival=rival) for rival in rivals)])
    theirs = runs[['model', *GROUP, 'round', 'seconds']].rename(columns=dict(model='rival', seconds='theirs'))
    joined = runs.merge(pairs, on='model').merge(theirs, on=['rival', *GROUP, 'round'])
    joined['ratio'] = joined.seconds / joined.theirs
    return joined.groupby([*CASE, 'rival'], sort=False).ratio.median().reset_index()


def ratio_table(runs: pd.DataFrame) -> str:
    """:func:`ratios` by contender, rival and size: median / worst."""
    each = ratios(runs)
    if each.empty:
        return ''
    each['model'] = each.model.map(_label) + ' : ' + each.rival.map(_label)
    grouped = each.groupby(['model', 'height', 'width'], sort=False).ratio
    cells = grouped.agg(lambda ratio: f'{ratio.median():.2f}' + (f' / {ratio.max():.2f}' if len(ratio) > 1 else ''))
    return f'As multiples of a rival\'s time, of runs side by side:\n\n{_wide(cells)}'


def condition_table(runs: pd.DataFrame) -> str:
    """Seconds of what was measured in several conditions."""
    runs = runs[runs.groupby('model').weights.transform('nunique') > 1].copy()
    if runs.empty:
        return ''
    runs['model'] = (
        runs.model.map(_label) + ', ' + runs.weights.map(lambda name: Path(name).name) + ' weights, ' + runs.picture +
        runs.backward.map({
            False: '',
            True: ', training'
        }))
    cells = runs.groupby(['model', 'height', 'width'], sort=False).seconds.median().map(_seconds)
    return f'## By weights and picture\n\n{_wide(cells)}'


def plot(runs: pd.DataFrame, quantity: str, out_dir: Path) -> Path:
    """Draws ``seconds`` or ``memory`` against tokens, a panel a pass, from the best to the worst case of each.

    Args:
        runs (DataFrame): Of :func:`run_benchmark`.
        quantity (str): ``'seconds'`` or ``'memory'``.
        out_dir (Path): Folder that exists.

    Returns:
        Path: The picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    runs = runs.dropna(subset=[quantity]).assign(tokens=runs.height * runs.width / 16)
    passes = sorted(runs.backward.unique())
    figure = Figure(figsize=(5.2 * len(passes) + 2.6, 5), layout='constrained')
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(passes), sharey=True, squeeze=False)[0]
    for panel, backward in zip(panels, passes):
        for i, model in enumerate(runs.model.unique()):
            chosen = runs[(runs.model == model) & (runs.backward == backward)]
            each = chosen.groupby(['tokens', 'weights', 'picture'
                                   ])[quantity].median() / (1e6 if quantity == 'memory' else 1)
            span = each.groupby('tokens').agg(['min', 'median', 'max'])
            color = f'C{i}' if i < 10 else f'C{i - 10}'
            panel.plot(
                span.index, span['median'], 'o-' if i < 10 else 's--', color=color, markersize=4, label=_label(model))
            panel.fill_between(span.index, span['min'], span['max'], color=color, alpha=0.2, linewidth=0)
        sizes = runs.drop_duplicates('tokens')
        panel.set(
            xscale='log',
            yscale='log',
            xlabel='tokens of stride 4, image',
            title='forward + backward' if backward else 'forward')
        panel.set_xticks(
            sizes.tokens, [
                f'{tokens / 1000:.3g}k\n{_size(height, width)}'
                for tokens, height, width in sizes[['tokens', 'height', 'width']].values
            ],
            fontsize=8)
        panel.set_xticks([], minor=True)
        panel.grid(alpha=0.3)
        panel.spines[['top', 'right']].set_visible(False)
    panels[0].set_ylabel('seconds' if quantity == 'seconds' else 'peak memory above the weights, MB')
    lines = {line.get_label(): line for panel in panels for line in panel.get_lines()}
    figure.legend(handles=list(lines.values()), loc='outside right center', frameon=False, fontsize=9)
    path = out_dir / f'{quantity}.png'
    figure.savefig(path, dpi=150)
    return path


def markdown(rows: List[list], header: Sequence[str]) -> str:
    """A Markdown table."""
    return pd.DataFrame(rows, columns=header).to_markdown(index=False, disable_numparse=True)


def _wide(cells: pd.Series) -> str:
    """Cells by model, height and width: a row a model, a column a size."""
    table = cells.unstack(['height', 'width'], sort=False).reindex(cells.index.unique('model')).fillna('–')
    table.index = [_label(model) for model in table.index]
    table.columns = [_size(*size) for size in table.columns]
    return table.to_markdown(disable_numparse=True)


def _label(model: str) -> str:
    return CONTENDERS[model].label if model in CONTENDERS else model


def _size(height: float, width: float) -> str:
    return f'{height:.0f}²' if height == width else f'{height:.0f}×{width:.0f}'


def _seconds(seconds: float) -> str:
    return '–' if seconds != seconds else f'{seconds:.2f} s' if seconds >= 0.1 else f'{1e3 * seconds:.1f} ms'
