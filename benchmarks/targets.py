"""What the benchmark is to show: ratios of time or memory, their bounds, and the sentences of the page."""

import itertools
from typing import NamedTuple

import pandas as pd

from .common import markdown
from .contenders import ABLATIONS, contender

ALLOCATORS = ('glibc', 'keeps pages')
GAIN = ':attention.bottleneck_gain=False'


class Run(NamedTuple):
    """Columns of a run: a contender, the size of its image, and the arithmetic."""

    model: str
    height: int = 800
    width: int = 1344
    dtype: str = 'float32'

    @property
    def title(self) -> str:
        """The contender, and what is not as usual."""
        size = f', {self.height}×{self.width}' * ((self.height, self.width) != (800, 1344))
        return contender(self.model).label + size + f', {self.dtype}' * (self.dtype != 'float32')


MEASURED = {  # column, and whether of a training step
    'time': ('seconds', False),
    'training step': ('seconds', True),
    'memory in evaluation': ('memory', False),
    'memory in training': ('memory', True),
    'time of a pixel': ('seconds', False),
}


class Ratio(NamedTuple):
    """A ratio of two runs in the same round with the same allocator: what it is to be at most, and of what it is."""

    run: Run
    base: Run
    bound: float = 1.0
    measured: str = 'time'

    @property
    def title(self) -> str:
        """The ratio in words."""
        base = self.base.title.replace(self.run.title, 'the same')
        return f'{self.run.title} : {base}' + f', {self.measured}' * (self.measured != 'time')

    def found(self, runs: pd.DataFrame) -> pd.Series:
        """By allocator and round; empty if it was not measured."""
        value, backward = MEASURED[self.measured]
        run, base = (
            runs[(runs[[*wanted]] == pd.Series(wanted)).all(axis=1)].set_index(['allocator', 'round'])[value]
            for wanted in (dict(one._asdict(), backward=backward) for one in (self.run, self.base))
        )
        if self.measured.endswith('pixel'):
            run, base = run / (self.run.height * self.run.width), base / (self.base.height * self.base.width)
        return (run / base).dropna()


TINY, SMALL = Run('soft_norm_tiny'), Run('soft_norm_small')
TINY_100, SMALL_100, SMALL_400 = (Run(f'soft_norm_{name}') for name in ('tiny_100', 'small_100', 'small_400'))
PVT_TINY, PVT_SMALL, SWIN, XCIT, SIMA = map(
    Run, ('pvt_tiny', 'pvt_small', 'swin_tiny', 'xcit_small', 'sima_xcit_small')
)
LIMITED = [f'soft_norm_{size}_{limit}' for size in ('tiny', 'small') for limit in (100, 400)]
TARGETS = [
    Ratio(SMALL_100, PVT_SMALL, 0.5),
    Ratio(SMALL_100, SWIN, 0.8),
    Ratio(TINY_100, PVT_TINY, 0.6),
    Ratio(SMALL_400, PVT_SMALL, 0.7),
    Ratio(SMALL_400, SWIN, 1.05),
    Ratio(SIMA, SWIN, 0.6),
    *(Ratio(Run(model), Run(model + GAIN), 1.15) for model in LIMITED),
    Ratio(TINY_100, PVT_TINY, 0.6, 'training step'),
    Ratio(SMALL_100, PVT_SMALL, 0.6, 'training step'),
    Ratio(TINY_100, PVT_TINY, 1 / 3, 'memory in evaluation'),
    Ratio(SMALL_100, PVT_SMALL, 1 / 3, 'memory in evaluation'),
    Ratio(TINY_100, PVT_TINY, 1 / 3, 'memory in training'),
    Ratio(SMALL_100, PVT_SMALL, 1 / 3, 'memory in training'),
    Ratio(Run('soft_norm_small_100', 2048, 2048), Run('soft_norm_small_100', 512, 512), 1.1, 'time of a pixel'),
    Ratio(SMALL_100._replace(dtype='bfloat16'), SMALL_100, 0.75),
    Ratio(SIMA._replace(dtype='bfloat16'), SIMA, 0.75),
]
AT_224 = dict(height=224, width=224)
SENTENCES = {
    '**At 224²**, SOFT-Norm takes {} (Small) and {} (Tiny) of the time of PVT of the same size.': [
        Ratio(SMALL._replace(**AT_224), PVT_SMALL._replace(**AT_224)),
        Ratio(TINY._replace(**AT_224), PVT_TINY._replace(**AT_224)),
    ],
    "**At 800×1344**, SOFT-Norm takes {} (Small) and {} (Tiny) of PVT's time.": [
        Ratio(SMALL, PVT_SMALL),
        Ratio(TINY, PVT_TINY),
    ],
    "**With at most 100 bottleneck tokens** it takes {} (Small) and {} (Tiny), and Small {} of Swin-T's.": [
        Ratio(SMALL_100, PVT_SMALL),
        Ratio(TINY_100, PVT_TINY),
        Ratio(SMALL_100, SWIN),
    ],
    "**A training step** with at most 100 takes {} and {} of PVT's.": [
        Ratio(SMALL_100, PVT_SMALL, measured='training step'),
        Ratio(TINY_100, PVT_TINY, measured='training step'),
    ],
    "**Memory** of that step is {} and {} of PVT's.": [
        Ratio(SMALL_100, PVT_SMALL, measured='memory in training'),
        Ratio(TINY_100, PVT_TINY, measured='memory in training'),
    ],
    "**SimA-XCiT-S12/16** takes {} of XCiT's time there, and {} of Swin-T's.": [Ratio(SIMA, XCIT), Ratio(SIMA, SWIN)],
}
"""What the page says in short: words, and the ratios that take the places of ``{}``."""


def short_text(runs: pd.DataFrame) -> str:
    """Markdown: what the runs show, in sentences; medians with kept pages / with glibc's defaults."""
    lines = []
    for words, ratios in SENTENCES.items():
        found = [ratio.found(runs).groupby('allocator').median() for ratio in ratios]
        if all(len(one) for one in found):
            shown = (' / '.join(f'{one[name]:.2f}' for name in ALLOCATORS[::-1] if name in one) for one in found)
            lines.append(f'* {words.format(*shown)}')
    return '\n'.join(lines)


def targets_text(runs: pd.DataFrame) -> str:
    """Markdown: medians / largest by allocator, and whether the median with kept pages is within the bound."""
    lines = []
    for target in TARGETS:
        ratios = target.found(runs)
        if len(ratios):
            by = ratios.groupby('allocator').agg(['median', 'max'])
            cells = {name: f'{one["median"]:.2f} / {one["max"]:.2f}' for name, one in by.iterrows()}
            kept = by['median'].get('keeps pages')
            met = '–' if kept is None else 'met' if kept <= target.bound else 'not met'
            lines.append((target.title, f'{target.bound:.2f}', *(cells.get(name, '–') for name in ALLOCATORS), met))
    return markdown(lines, ('ratio', 'at most', *ALLOCATORS, '')) if lines else ''


def ablations_text(runs: pd.DataFrame) -> str:
    """Markdown: images a second and peak memory of the papers' ablations, and both as multiples of softmax's."""
    runs = runs[runs.model.str.fullmatch('|'.join(f'tiny_{name}' for name in ABLATIONS))]
    runs = runs.assign(speed=runs.batch / runs.seconds, memory=runs.memory / 1e6)
    by = runs.groupby(['model', 'backward', 'allocator'])[['speed', 'memory']].median()
    lines = []
    for name, (label, _) in ABLATIONS.items():
        cells = [label]
        for value, backward, allocator in itertools.product(('speed', 'memory'), (False, True), ALLOCATORS):
            one, first = (by[value].get((f'tiny_{key}', backward, allocator)) for key in (name, 'softmax'))
            cells.append(f'{one:.3g} ({one / first:.2f})' if one and first else '–')
        lines.append(cells)
    parts = itertools.product(('images/s', 'MB'), ('evaluation', 'training'), ALLOCATORS)
    header = ('', *(f'{part}, {unit}, {allocator}' for unit, part, allocator in parts))
    return markdown(lines, header) if len(runs) else ''
