"""What the benchmark is to show: ratios of time or memory, their bounds, and the sentences of the page."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from .common import markdown
from .contenders import ABLATIONS, contender
from .worker import ALLOCATORS

GAIN, RECOMPUTED = ':attention.bottleneck_gain=False', ':with_cp=ffn'
LIMITED = [f'soft_norm_{size}_{limit}' for size in ('tiny', 'small') for limit in (100, 400)]
MEASURED = {  # column, and whether of a training step
    'time': ('seconds', False),
    'training step': ('seconds', True),
    'memory in evaluation': ('memory', False),
    'memory in training': ('memory', True),
    'time of a pixel': ('seconds', False),
}


OF_PVT = ('soft_norm_small_100 : pvt_small', 'soft_norm_tiny_100 : pvt_tiny')
RECOMPUTED_OF_PVT = tuple(pair.replace(' :', f'{RECOMPUTED} :') for pair in OF_PVT)
TRAINED_OF_PVT = OF_PVT[::-1] + RECOMPUTED_OF_PVT[::-1]
# What is divided by what, of which measure, and the most that it is to be. Behind a contender may be a size and an
# arithmetic that are not the usual ones.
TARGETS: list[tuple[str, str, float]] = [
    ('soft_norm_small_100 : pvt_small', 'time', 0.5),
    ('soft_norm_small_100 : swin_tiny', 'time', 0.8),
    ('soft_norm_tiny_100 : pvt_tiny', 'time', 0.6),
    ('soft_norm_small_400 : pvt_small', 'time', 0.7),
    ('soft_norm_small_400 : swin_tiny', 'time', 1.05),
    ('sima_xcit_small : swin_tiny', 'time', 0.6),
    *((f'{run} : {run}{GAIN}', 'time', 1.15) for run in LIMITED),
    *((pair, 'training step', 0.6) for pair in TRAINED_OF_PVT),
    *((pair, 'memory in evaluation', 1 / 3) for pair in OF_PVT[::-1]),
    *((pair, 'memory in training', 1 / 3) for pair in TRAINED_OF_PVT),
    ('soft_norm_small_100 2048x2048 : soft_norm_small_100 512x512', 'time of a pixel', 1.1),
    ('soft_norm_small_100 800x1344 bfloat16 : soft_norm_small_100', 'time', 0.75),
    ('sima_xcit_small 800x1344 bfloat16 : sima_xcit_small', 'time', 0.75),
]
# What the page says in short: words, a measure, and the ratios that take the places of {}.
SENTENCES: list[tuple[str, str, Sequence[str]]] = [
    (
        '**At 224²**, SOFT-Norm takes {} (Small) and {} (Tiny) of the time of PVT of the same size.',
        'time',
        ('soft_norm_small 224x224 : pvt_small 224x224', 'soft_norm_tiny 224x224 : pvt_tiny 224x224'),
    ),
    (
        "**At 800×1344**, SOFT-Norm takes {} (Small) and {} (Tiny) of PVT's time.",
        'time',
        ('soft_norm_small : pvt_small', 'soft_norm_tiny : pvt_tiny'),
    ),
    (
        "**With at most 100 bottleneck tokens** it takes {} (Small) and {} (Tiny), and Small {} of Swin-T's.",
        'time',
        (*OF_PVT, 'soft_norm_small_100 : swin_tiny'),
    ),
    ("**A training step** with at most 100 takes {} (Small) and {} (Tiny) of PVT's time.", 'training step', OF_PVT),
    ("**A training step's memory** with at most 100 is {} and {} of PVT's.", 'memory in training', OF_PVT),
    (
        "**With `with_cp='ffn'`**, which computes feed-forward networks twice, a step takes {} and {} of PVT's time.",
        'training step',
        RECOMPUTED_OF_PVT,
    ),
    ("**With `with_cp='ffn'`**, a step's memory is {} and {} of PVT's.", 'memory in training', RECOMPUTED_OF_PVT),
    (
        "**SimA-XCiT-S12/16** takes {} of XCiT's time for an image of 800×1344, and {} of Swin-T's.",
        'time',
        ('sima_xcit_small : xcit_small', 'sima_xcit_small : swin_tiny'),
    ),
]


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


def both(pair: str) -> Iterator[Run]:
    """The two runs of ``'MODEL SIZE DTYPE : MODEL SIZE DTYPE'``, of which sizes and dtypes may be missing."""
    for text in pair.split(' : '):
        model, *more = text.split()
        size, dtype = [*more, *('800x1344', 'float32')[len(more) :]]
        yield Run(model, *map(int, size.split('x')), dtype)


def ratios(runs: pd.DataFrame, measured: str, run: Run, base: Run) -> pd.Series:
    """Of two runs in the same round with the same allocator, by allocator and round; empty if one was not measured."""
    value, backward = MEASURED[measured]
    above, below = (
        runs[(runs[[*wanted]] == pd.Series(wanted)).all(axis=1)].set_index(['allocator', 'round'])[value]
        for wanted in (dict(one._asdict(), backward=backward) for one in (run, base))
    )
    if measured.endswith('pixel'):
        above, below = above / (run.height * run.width), below / (base.height * base.width)
    return (above / below).dropna()


def short_text(runs: pd.DataFrame) -> str:
    """Markdown: what the runs show, in sentences; medians with glibc's defaults / with kept pages."""
    lines = []
    for words, measured, pairs in SENTENCES:
        found = [ratios(runs, measured, *both(pair)).groupby('allocator').median() for pair in pairs]
        if all(len(one) for one in found):
            shown = (' / '.join(f'{one[name]:.2f}' for name in ALLOCATORS if name in one) for one in found)
            lines.append(f'* {words.format(*shown)}')
    return '\n'.join(lines)


def targets_text(runs: pd.DataFrame) -> str:
    """Markdown: medians and the largest by allocator, and whether the median with kept pages is within the bound."""
    lines = []
    for pair, measured, bound in TARGETS:
        run, base = both(pair)
        found = ratios(runs, measured, run, base).groupby('allocator')
        if found.ngroups:
            versus = f'{run.title} : {base.title.replace(run.title, "the same")}'
            cells = found.agg(lambda some: f'{some.median():.2f} ({some.max():.2f})')
            kept = found.median().get('keeps pages')
            met = '–' if kept is None else 'met' if kept <= bound else 'not met'
            title = versus + f', {measured}' * (measured != 'time')
            lines.append((title, f'{bound:.2f}', *(cells.get(name, '–') for name in ALLOCATORS), met))
    return markdown(lines, ('ratio', 'at most', *ALLOCATORS, '')) if lines else ''


def ablations_text(runs: pd.DataFrame) -> str:
    """Markdown: images a second and peak memory of the papers' ablations, and both as multiples of softmax's."""
    runs = runs[runs.model.isin(ABLATIONS)]
    runs = runs.assign(speed=runs.batch / runs.seconds, memory=runs.memory / 1e6)
    sizes = dict.fromkeys(zip(runs.height, runs.width))
    by = runs.groupby(['height', 'width', 'model', 'backward', 'allocator']).agg(dict(speed='median', memory='max'))
    lines = []
    for (height, width), (name, ablation) in itertools.product(sizes, ABLATIONS.items()):
        cells = [ablation.label + f', {height}×{width}' * ((height, width) != (224, 224))]
        for value, *case in itertools.product(('speed', 'memory'), (False, True), ALLOCATORS):
            one, first = (by[value].get((height, width, key, *case)) for key in (name, 'tiny_softmax'))
            cells.append(f'{one:.3g} ({one / first:.2f})' if one and first else '–')
        lines.append(cells)
    parts = itertools.product(('images/s', 'MB'), ('evaluation', 'training'), ALLOCATORS)
    header = ('', *(f'{part}, {unit}, {allocator}' for unit, part, allocator in parts))
    return markdown(lines, header) if lines else ''
