"""Draws docs/images/speed_accuracy.svg, tokens.svg and limits.svg from docs/data: ``python docs/figures/speed.py``.

``python -m benchmarks.speed --publish`` writes that file and runs this one. Scores are the papers'.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import pandas as pd

DOCS = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
plt.rcParams.update({'font.family': 'DejaVu Sans', 'svg.fonttype': 'path', 'svg.hashsalt': 'mmsoft', 'font.size': 9})
GREY, BLUE, VIOLET, ORANGE = '#5b6270', '#2f6fd0', '#8a4fc0', '#d0661f'
# By contender: label, colour, marker, box AP of RetinaNet 1x, ImageNet top-1. The APs of PVT and ResNet-50 are those of
# mmdet's model zoo, which trained them; SOFT's are of arXiv 2207.03341, Table 4. Top-1: arXiv 2207.03341, Table 3, and
# for XCiT arXiv 2206.08898, Tables 1 and 2.
SCORES = dict(
    soft_norm_tiny=('SOFT-Norm-Tiny', VIOLET, 'o', 40.0, 79.4),
    soft_norm_small=('SOFT-Norm-Small', VIOLET, 'o', 42.8, 82.4),
    sima_xcit_small=('SimA-XCiT-S12/16', ORANGE, 'D', None, 82.1),
    xcit_small=('XCiT-S12/16', ORANGE, 'v', None, 82.0),
    pvt_tiny=('PVT-Tiny', BLUE, 's', 36.6, 75.1),
    pvt_small=('PVT-Small', BLUE, 's', 40.4, 79.8),
    swin_tiny=('Swin-T', GREY, '^', None, 81.3),
    resnet50=('ResNet-50', GREY, 'P', 36.5, 78.5),
)
PLACES = dict(  # of labels that would meet others
    sima_xcit_small=((-8, -2), 'right'),
    xcit_small=((-8, -12), 'right'),
    soft_norm_tiny=((8, -11), 'left'),
    resnet50=((-8, -16), 'left'),
)
LINES = dict(
    soft_norm_small=('SOFT-Norm-Small', VIOLET, '-'),
    soft_norm_small_100=('at most 100\nbottleneck tokens', VIOLET, '--'),
    pvt_small=('PVT-Small', BLUE, '-'),
    sima_xcit_small=('SimA-XCiT-S12/16', ORANGE, '-'),
)
TICKS = (3136, 16384, 67200, 262144)  # tokens at stride 4 of 224², 512², 800×1344 and 2048²


def plain(panel, **settings):
    panel.set(**settings)
    panel.spines[['top', 'right']].set_visible(False)
    panel.grid(alpha=0.25)


def save(figure, name):
    (DOCS / 'images').mkdir(exist_ok=True)
    figure.savefig(DOCS / f'images/{name}.svg', facecolor='white', metadata={'Date': None})


def speed_accuracy(runs):
    """Scores against seconds of the backbone; a line joins the two allocators, the hollow end keeps pages."""
    figure, panels = plt.subplots(1, 2, figsize=(9.4, 4), layout='constrained')
    parts = (((800, 1344), 3, 'box AP, RetinaNet 1x'), ((224, 224), 4, 'ImageNet top-1, %'))
    for panel, (size, column, ylabel) in zip(panels, parts):
        chosen = runs[(runs.height == size[0]) & (runs.width == size[1]) & ~runs.backward]
        for model, (label, colour, marker, *_) in SCORES.items():
            score, seconds = SCORES[model][column], chosen[chosen.model == model].groupby('allocator').seconds.median()
            if score is None or seconds.empty:
                continue
            panel.plot(seconds, [score] * len(seconds), color=colour, lw=1)
            for allocator, value in seconds.items():
                face = colour if allocator == 'glibc' else 'white'
                panel.plot(value, score, marker, color=colour, markerfacecolor=face, markersize=7)
            place, side = PLACES.get(model, ((8, 3), 'left'))
            edge = seconds.max() if side == 'left' else seconds.min()
            panel.annotate(label, (edge, score), place, textcoords='offset points', color=colour, ha=side)
        plain(panel, xlabel=f'seconds of the backbone, {size[0]}×{size[1]}', ylabel=ylabel, xlim=(0, None))
        panel.margins(0.05, 0.12)
        panel.set_xlim(0, 1.3 * panel.get_xlim()[1])
    save(figure, 'speed_accuracy')


def labels(lines, half):
    """(x, y, side, label, colour) of labels at the ends of lines, on no other label and not on a longer line.

    Args:
        lines: Of a panel, as (values by tokens, label, colour).
        half: Factor on the vertical axis that is half a line of text.
    """
    longest = max((line[0] for line in lines), key=lambda points: points.index[-1], default=None)
    stacks = dict(right=[], above=[], below=[])
    for points, label, colour in lines:
        x, y = points.index[-1], points.iloc[-1]
        beside = longest.get(x, y)
        place = 'right' if x == longest.index[-1] else 'above' if y > 1.5 * beside else 'below'
        stacks[place].append((y, x, beside, label, colour))
    for place, members in stacks.items():
        last, before = None, 0
        for y, x, beside, label, colour in sorted(members, reverse=place == 'below'):
            gap, before = half ** (before + 1 + label.count('\n')), 1 + label.count('\n')
            if place == 'below':
                last = min(y, (last or beside / half) / gap)
            else:
                last = max(y * (half if place == 'above' else 1), (last or 0) * gap)
            x, side = (x / 1.12, 'right') if place == 'above' else (1.12 * x, 'left')
            yield x, last, side, label, colour


def tokens(runs):
    """Time and peak memory against the tokens at stride 4, in evaluation and training."""
    figure, panels = plt.subplots(2, 2, figsize=(9.4, 7), layout='constrained', sharex=True)
    runs = runs.assign(tokens=runs.height * runs.width // 16, memory=runs.memory / 1e9)
    for column, (backward, title) in enumerate(((False, 'evaluation'), (True, 'training: forward and backward'))):
        for row, (value, unit) in enumerate((('seconds', 'seconds'), ('memory', 'peak memory, GB'))):
            panel, ends = panels[row][column], []
            for model, (label, colour, style) in LINES.items():
                chosen = runs[(runs.model == model) & (runs.backward == backward) & (runs.allocator == 'glibc')]
                points = chosen.groupby('tokens')[value].agg('max' if value == 'memory' else 'median').dropna()
                if len(points) > 1:
                    panel.plot(points, style, color=colour, marker='o', markersize=4)
                    ends.append((points, label, colour))
            plain(panel, xscale='log', yscale='log', ylabel=unit, title=title if row == 0 else '')
            panel.set_xlim(None, 4.5 * max((points.index[-1] for points, *_ in ends), default=1))
            low, high = panel.get_ylim()
            panel.set_ylim(low, 1.3 * high)
            for x, y, side, label, colour in labels(ends, (high / low) ** 0.033):
                panel.text(x, y, label, va='center', ha=side, color=colour)
            panel.set_xticks(TICKS, [f'{one:,}' for one in TICKS])
            panel.minorticks_off()
            panel.yaxis.set_major_formatter('{x:g}')
            if row == 1:
                panel.set_xlabel('tokens at stride 4')
    save(figure, 'tokens')


def limits(scores):
    """AP against CPU seconds an image, a point for each limit in evaluation; bars are the range of the seeds."""
    figure, panel = plt.subplots(figsize=(7, 3.6), layout='constrained')
    seconds = scores[scores.limit >= 0].groupby('limit').seconds.median().sort_values()
    for trained, colour, label, shift in ((0, VIOLET, 'without a limit', 0), (100, BLUE, 'with 100', 0.004)):
        by = scores[scores.trained == trained].groupby('limit').ap.agg(['mean', 'min', 'max'])
        found = by.loc[seconds.index]
        bars = found['mean'] - found['min'], found['max'] - found['mean']
        x, side = seconds + shift, 1 - trained / 50
        panel.errorbar(x, found['mean'], bars, color=colour, marker='o', markersize=4, lw=1, elinewidth=1, capsize=2)
        place = (8, 9 * side - 3)
        panel.annotate(
            f'trained {label}', (x.iloc[-1], found['mean'].iloc[-1]), place, textcoords='offset points', color=colour
        )
    for index, (limit, x) in enumerate(seconds.items()):  # at two heights, as small limits take the same time
        place = (0, 6 + 11 * (index % 2))
        panel.annotate(str(limit or 'none'), (x, scores.ap.max()), place, textcoords='offset points', ha='center')
    panel.annotate('limit:', (seconds.iloc[0], scores.ap.max()), (-14, 6), textcoords='offset points', ha='right')
    control = scores[scores.limit < 0].ap.mean()
    panel.axhline(control, color=GREY, lw=1, ls='--')
    panel.annotate('without attention', (seconds.iloc[-1], control), (8, 4), textcoords='offset points', color=GREY)
    top = 1.2 * scores.ap.max()
    plain(
        panel, xlabel='CPU seconds an image, one thread', ylabel='box AP', ylim=(0, top), xlim=(0, 1.35 * seconds.max())
    )
    save(figure, 'limits')


if __name__ == '__main__':
    table = pd.read_csv(DOCS / 'data/benchmark.csv').query("dtype == 'float32'")
    speed_accuracy(table)
    tokens(table)
    if (DOCS / 'data/limit_scores.csv').exists():
        limits(pd.read_csv(DOCS / 'data/limit_scores.csv'))
