"""The benchmark's runs as tables and plots: the median over weights and pictures, and the worst."""
import re
from pathlib import Path
from typing import Sequence

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch.utils.collect_env import get_pretty_env_info

from .contenders import CONTENDERS

SIZE = ['height', 'width', 'backward']
CASE = ['model', 'weights', 'picture', *SIZE]
TITLES = {False: 'Evaluation: forward', True: 'Training: forward + backward'}


def write_report(runs: pd.DataFrame, spectra: pd.DataFrame, out_dir: Path) -> Path:
    """Writes ``benchmark.md``, ``environment.txt`` and the plots ``seconds.png`` and ``memory.png``.

    Args:
        runs (DataFrame): Of :func:`run_benchmark`.
        spectra (DataFrame): Of :func:`look_at_kernels`; may be empty.
        out_dir (Path): Folder that exists.

    Returns:
        Path: The Markdown file.
    """
    environment = get_pretty_env_info()
    (out_dir / 'environment.txt').write_text(environment)
    machine = re.search(r'Model name:\s*(.*)', environment)
    parts = [f'{machine.group(1) if machine else "Unknown processor"}, see environment.txt. Seconds and ratios are the '
             'median over weights and pictures / the worst of them; memory is the peak above weights and picture.']
    for backward, title in TITLES.items():
        chosen = runs[runs.backward == backward]
        parts += [f'## {title}', cost_table(chosen), ratio_table(chosen)] if len(chosen) else []
    parts += ['## By weights and picture', condition_table(runs, spectra)] if len(spectra) else []
    for quantity in ('seconds', 'memory'):
        plot(runs, quantity).savefig(out_dir / f'{quantity}.png', dpi=150)
        parts.append(f'![{quantity} against tokens]({quantity}.png)')
    report = out_dir / 'benchmark.md'
    report.write_text('\n\n'.join(['# Backbones side by side', *filter(None, parts)]) + '\n')
    return report


def cost_table(runs: pd.DataFrame) -> str:
    """Seconds and peak memory by contender and size."""
    each = runs.groupby(CASE, sort=False)[['seconds', 'memory']].median()
    return _wide(each.groupby(['model', 'height', 'width'], sort=False).apply(
        lambda case: ', '.join([_spread(case.seconds, _seconds), f'{case.memory.max() / 1e6:.0f} MB'])))


def ratios(runs: pd.DataFrame, rivals: Sequence[str] = ('swin_tiny', 'resnet50')) -> pd.DataFrame:
    """Times as multiples of a rival's in the same round, the median over rounds.

    Args:
        runs (DataFrame): Of :func:`run_benchmark`.
        rivals (Sequence[str]): Keys of whom to hold all that have a rival against, besides their own.

    Returns:
        DataFrame: ``ratio`` by case and ``rival``.
    """
    own = pd.DataFrame([(model, CONTENDERS[model].rival) for model in runs.model.unique()], columns=['model', 'rival'])
    pairs = pd.concat([own.dropna(), *(own.dropna().assign(rival=rival) for rival in rivals)])
    theirs = runs[['model', *SIZE, 'round', 'seconds']].rename(columns=dict(model='rival', seconds='theirs'))
    joined = runs.merge(pairs, on='model').merge(theirs, on=['rival', *SIZE, 'round'])
    return joined.assign(ratio=joined.seconds / joined.theirs).groupby([*CASE, 'rival'],
                                                                       sort=False).ratio.median().reset_index()


def ratio_table(runs: pd.DataFrame) -> str:
    """:func:`ratios` by contender, rival and size."""
    each = ratios(runs)
    each['model'] = each.model.map(_label) + ' : ' + each.rival.map(_label)
    return _wide(each.groupby(['model', 'height', 'width'], sort=False).ratio.agg(_spread))


def condition_table(runs: pd.DataFrame, spectra: pd.DataFrame) -> str:
    """What the kernel matrices look like, and seconds, by contender, weights and picture."""
    times = runs[CASE + ['seconds']].assign(
        size=[_size(*case) + ' training' * case[2] for case in zip(runs.height, runs.width, runs.backward)])
    keys = ['model', 'weights', 'picture']
    times = times.groupby([*keys, 'size'], sort=False).seconds.median().map(_seconds).unstack('size', sort=False)
    table = spectra.merge(times.reset_index(), on=keys, how='left').fillna('–')
    table['model'], table['weights'] = table.model.map(_label), table.weights.map(lambda name: Path(name).name)
    return table.to_markdown(index=False, disable_numparse=True)


def plot(runs: pd.DataFrame, quantity: str) -> Figure:
    """``seconds`` or ``memory`` against tokens, a panel a pass, each contender from its best to its worst case."""
    runs = runs.assign(tokens=runs.height * runs.width // 16, memory=runs.memory / 1e6)
    sizes = runs.drop_duplicates('tokens')
    passes = sorted(runs.backward.unique())
    figure = Figure(figsize=(3 + 5 * len(passes), 5), layout='constrained')
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(passes), sharex=True, sharey=True, squeeze=False)[0]
    for panel, backward in zip(panels, passes):
        for i, model in enumerate(runs.model.unique()):
            chosen = runs[(runs.model == model) & (runs.backward == backward)]
            each = chosen.groupby(['tokens', 'weights', 'picture'])[quantity].median()
            span = each.groupby('tokens').agg(['min', 'median', 'max'])
            color = f'C{i % 10}'
            panel.plot(span.index, span['median'], 's--' if i > 9 else 'o-', color=color, label=_label(model))
            panel.fill_between(span.index, span['min'], span['max'], color=color, alpha=0.2, linewidth=0)
        panel.set(xscale='log', yscale='log', title=TITLES[backward], xlabel='tokens of stride 4, image')
        names = [f'{n}\n{_size(*size)}' for n, *size in zip(sizes.tokens, sizes.height, sizes.width)]
        panel.set_xticks(sizes.tokens, names)
        panel.set_xticks([], minor=True)
        panel.grid(alpha=0.3)
        panel.spines[['top', 'right']].set_visible(False)
    panels[0].set_ylabel('seconds' if quantity == 'seconds' else 'peak memory above the weights, MB')
    figure.legend(*panels[0].get_legend_handles_labels(), loc='outside right center', frameon=False, fontsize=9)
    return figure


def _wide(cells: pd.Series) -> str:
    """Cells by model, height and width: a row a model, a column a size."""
    if cells.empty:
        return ''
    table = cells.unstack(['height', 'width'], sort=False).reindex(cells.index.unique('model')).fillna('–')
    table.index, table.columns = map(_label, table.index), [_size(*size) for size in table.columns]
    return table.to_markdown(disable_numparse=True)


def _spread(numbers: pd.Series, show=lambda number: f'{number:.2f}') -> str:
    """The median, and the worst if there are several."""
    return show(numbers.median()) + (f' / {show(numbers.max())}' if len(numbers) > 1 else '')


def _label(model: str) -> str:
    return CONTENDERS[model].label if model in CONTENDERS else model


def _size(height: int, width: int, *_) -> str:
    return f'{height}²' if height == width else f'{height}×{width}'


def _seconds(seconds: float) -> str:
    return '–' if seconds != seconds else f'{seconds:.2f} s' if seconds >= 0.1 else f'{1e3 * seconds:.1f} ms'
