"""Runs of the benchmark as tables and plots: the median over weights and images, and the worst."""
from pathlib import Path
from typing import Callable, Sequence

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch.utils.collect_env import get_pretty_env_info

from .contenders import contender

SIZE = ['height', 'width', 'allocator']
CASE = ['model', 'weights', 'image', *SIZE, 'backward']
TITLES = {False: 'Evaluation: forward', True: 'Training: forward + backward'}
SERIES = 5  # of one plot


def write_report(runs: pd.DataFrame, kernels: pd.DataFrame, out_dir: Path) -> Path:
    """Writes ``benchmark.md``, ``environment.txt`` and the plots ``seconds.png`` and ``memory.png``.

    Args:
        runs (DataFrame): Of :func:`run_benchmark`.
        kernels (DataFrame): Of :func:`look_at_kernels`; may be empty.
        out_dir (Path): Folder that exists.

    Returns:
        Path: The Markdown file.
    """
    (out_dir / 'environment.txt').write_text(get_pretty_env_info())
    one = runs.iloc[0]
    parts = [
        '# Backbones side by side',
        f'{one.machine}, {one.device}, {one.threads} threads, {one["dtype"]}, batch {one.batch}, torch {one.torch}'
        f'{", compiled" * bool(one["compile"])}, commit {one.commit}; see environment.txt. Seconds are medians of '
        'interleaved rounds: the median over weights and images / the worst of them. Memory is the peak above weights '
        'and image.']
    for backward, title in TITLES.items():
        chosen = runs[runs.backward == backward]
        parts += [f'## {title}', cost_table(chosen), ratio_table(chosen)] if len(chosen) else []
    if len(kernels):
        kernels = kernels.assign(model=kernels.model.map(_label)).drop(columns='code')
        parts += ['## Kernel matrices and accuracy', kernels.to_markdown(index=False, disable_numparse=True)]
    for quantity in ('seconds', 'memory'):
        plot(runs, quantity).savefig(out_dir / f'{quantity}.png', dpi=150)
        parts.append(f'![{quantity} against tokens]({quantity}.png)')
    notes = runs[runs.note.fillna('') != ''] if 'note' in runs else runs[:0]
    parts += [f'* {_label(run.model)}, {run.height}×{run.width}: {run.note}' for run in notes.itertuples()]
    report = out_dir / 'benchmark.md'
    report.write_text('\n\n'.join(filter(None, parts)) + '\n')
    return report


def cost_table(runs: pd.DataFrame) -> str:
    """Seconds and peak memory by contender, size and allocator."""
    each = runs.groupby(CASE, sort=False)[['seconds', 'memory']].median()
    return _wide(each.groupby(['model', *SIZE], sort=False).apply(
        lambda case: f'{_spread(case.seconds, _seconds)}, {case.memory.max() / 1e6:.0f} MB'))


def ratios(runs: pd.DataFrame, rivals: Sequence[str] = ('swin_tiny', 'resnet50')) -> pd.DataFrame:
    """Times as multiples of a rival's in the same round with the same allocator, the median over rounds.

    Args:
        runs (DataFrame): Of :func:`run_benchmark`.
        rivals (Sequence[str]): Keys of what every contender with a rival is compared with besides.

    Returns:
        DataFrame: ``ratio`` by case and ``rival``.
    """
    own = [(model, contender(model).rival) for model in runs.model.unique() if contender(model).rival]
    own = pd.DataFrame(own, columns=['model', 'rival'])
    pairs = pd.concat([own, *(own.assign(rival=rival) for rival in rivals)])
    same = [*SIZE, 'backward', 'round']
    theirs = runs[['model', *same, 'seconds']].rename(columns=dict(model='rival', seconds='theirs'))
    joined = runs.merge(pairs, on='model').merge(theirs, on=['rival', *same])
    joined['ratio'] = joined.seconds / joined.theirs
    return joined.groupby([*CASE, 'rival'], sort=False).ratio.median().reset_index()


def ratio_table(runs: pd.DataFrame) -> str:
    """:func:`ratios` by contender, rival, size and allocator."""
    each = ratios(runs)
    each['model'] = each.model.map(_label) + ' : ' + each.rival.map(_label)
    return _wide(each.groupby(['model', *SIZE], sort=False).ratio.agg(_spread))


def plot(runs: pd.DataFrame, quantity: str) -> Figure:
    """``seconds`` or ``memory`` against tokens: a panel for each pass and allocator, the first contenders as lines."""
    runs = runs.assign(tokens=runs.height * runs.width // 16, memory=runs.memory / 1e6)
    panels = list(runs.groupby(['backward', 'allocator'], sort=False))
    figure = Figure(figsize=(6 * len(panels), 4.5), layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axis, ((backward, allocator), chosen) in zip(axes, panels):
        for i, (model, own) in enumerate(list(chosen.groupby('model', sort=False))[:SERIES]):
            each = own.groupby(['tokens', 'weights', 'image'])[quantity].median()
            span = each.groupby('tokens').agg(['min', 'median', 'max'])
            axis.plot(span.index, span['median'], 'o-', color=f'C{i}')
            axis.fill_between(span.index, span['min'], span['max'], color=f'C{i}', alpha=0.2, linewidth=0)
            axis.annotate(f' {_label(model)}', (span.index[-1], span['median'].iloc[-1]), color=f'C{i}', fontsize=9)
        axis.set(xscale='log', yscale='log', title=f'{TITLES[backward]}, {allocator}', xlabel='tokens of stride 4')
        axis.margins(x=0.35)
        axis.grid(alpha=0.3)
        axis.spines[['top', 'right']].set_visible(False)
    axes[0].set_ylabel('seconds' if quantity == 'seconds' else 'peak memory above the weights, MB')
    return figure


def _wide(cells: pd.Series) -> str:
    """Cells by model, size and allocator: a row for each model, a column for each size and allocator."""
    if cells.empty:
        return ''
    table = cells.unstack(SIZE, sort=False).reindex(cells.index.unique('model')).fillna('–')
    table.index = [_label(name) for name in table.index]
    table.columns = [f'{height}² {allocator}' if height == width else f'{height}×{width} {allocator}'
                     for height, width, allocator in table.columns]
    return table.to_markdown(disable_numparse=True)


def _spread(numbers: pd.Series, show: Callable[[float], str] = '{:.2f}'.format) -> str:
    """The median, and the worst if there are several."""
    return show(numbers.median()) + (f' / {show(numbers.max())}' if len(numbers) > 1 else '')


def _label(model: str) -> str:
    return model if ' : ' in model else contender(model).label


def _seconds(seconds: float) -> str:
    return '–' if seconds != seconds else f'{seconds:.2f} s' if seconds >= 0.1 else f'{1e3 * seconds:.1f} ms'
