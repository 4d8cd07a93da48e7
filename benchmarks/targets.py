"""What the benchmark is to show: ratios of time or memory, and their bounds."""

import itertools
from typing import Any, NamedTuple

import pandas as pd
from tabulate import tabulate

from .contenders import ABLATIONS

WHOLE = dict(height=800, width=1344, backward=False, dtype='float32')
ALLOCATORS = ('glibc', 'keeps pages')
GAIN = ':attention.bottleneck_gain=False'


class Target(NamedTuple):
    """A ratio of two runs in the same round with the same allocator.

    Attributes:
        title: In the table.
        bound: What it is to be at most.
        run: Columns of the run, besides those of :data:`WHOLE`.
        base: Columns of the run that it is divided by.
        value: ``'seconds'`` or ``'memory'``.
        scale: What the ratio is divided by.
    """

    title: str
    bound: float
    run: dict[str, Any]
    base: dict[str, Any]
    value: str = 'seconds'
    scale: float = 1.0

    def ratios(self, runs: pd.DataFrame) -> pd.Series:
        """By allocator and round; empty if it was not measured."""
        run, base = (
            runs[(runs[[*one]] == pd.Series(one)).all(axis=1)].set_index(['allocator', 'round'])[self.value]
            for one in ({**WHOLE, **self.run}, {**WHOLE, **self.base})
        )
        return (run / base / self.scale).dropna()


def _against(title: str, bound: float, model: str, rival: str, value: str = 'seconds', **both: Any) -> Target:
    return Target(title, bound, dict(both, model=model), dict(both, model=rival), value)


def _targets() -> list[Target]:
    found = []
    for size, limit, rival, label, bound in (
        ('small', 100, 'pvt_small', 'PVT-Small', 0.5),
        ('small', 100, 'swin_tiny', 'Swin-T', 0.8),
        ('tiny', 100, 'pvt_tiny', 'PVT-Tiny', 0.6),
        ('small', 400, 'pvt_small', 'PVT-Small', 0.7),
        ('small', 400, 'swin_tiny', 'Swin-T', 1.05),
    ):
        title = f'SOFT-Norm-{size.title()}, at most {limit} tokens : {label}'
        found.append(_against(title, bound, f'soft_norm_{size}_{limit}', rival))
    found.append(_against('SimA-XCiT-S12/16 : Swin-T', 0.6, 'sima_xcit_small', 'swin_tiny'))
    for size in ('tiny', 'small'):
        name, rival, pvt = f'SOFT-Norm-{size.title()}', f'pvt_{size}', f'PVT-{size.title()}'
        for limit in (100, 400):
            model = f'soft_norm_{size}_{limit}'
            found.append(_against(f'{name}, at most {limit}: with the gain : without', 1.15, model, model + GAIN))
        model = f'soft_norm_{size}_100'
        found.append(_against(f'{name}, at most 100 : {pvt}, training step', 0.6, model, rival, backward=True))
        for backward in (False, True):
            title = f'{name}, at most 100 : {pvt}, memory in {"training" if backward else "evaluation"}'
            found.append(_against(title, 1 / 3, model, rival, 'memory', backward=backward))
    small = dict(model='soft_norm_small_100')
    large = dict(small, height=2048, width=2048)
    found.append(Target('a pixel of 2048² : of 512²', 1.1, large, dict(small, height=512, width=512), scale=16))
    for model, name in (
        ('soft_norm_small_100', 'SOFT-Norm-Small, at most 100'),
        ('sima_xcit_small', 'SimA-XCiT-S12/16'),
    ):
        found.append(
            Target(f'{name}: bfloat16 : float32', 0.75, dict(model=model, dtype='bfloat16'), dict(model=model))
        )
    return found


TARGETS = _targets()


def _sentences() -> list[tuple[str, list[Target]]]:
    """What the page says in short: words, and the ratios that take the places of ``{}``."""
    full, few = ('soft_norm_small', 'soft_norm_tiny'), ('soft_norm_small_100', 'soft_norm_tiny_100')
    pvt = ('pvt_small', 'pvt_tiny')

    def of(models: tuple[str, ...], rivals: tuple[str, ...], value: str = 'seconds', **both: Any) -> list[Target]:
        return [_against('', 1, model, rival, value, **both) for model, rival in zip(models, rivals)]

    return [
        (
            '**At 224²**, SOFT-Norm takes {} (Small) and {} (Tiny) of the time of PVT of the same size.',
            of(full, pvt, height=224, width=224),
        ),
        ("**At 800×1344**, SOFT-Norm takes {} (Small) and {} (Tiny) of PVT's time.", of(full, pvt)),
        (
            "**With at most 100 bottleneck tokens** it takes {} (Small) and {} (Tiny), and Small {} of Swin-T's.",
            [*of(few, pvt), *of(few[:1], ('swin_tiny',))],
        ),
        ("**A training step** with at most 100 takes {} and {} of PVT's.", of(few, pvt, backward=True)),
        ("**Memory** of that step is {} and {} of PVT's.", of(few, pvt, 'memory', backward=True)),
        (
            "**SimA-XCiT-S12/16** takes {} of XCiT's time there, and {} of Swin-T's.",
            of(('sima_xcit_small',) * 2, ('xcit_small', 'swin_tiny')),
        ),
    ]


def short_text(runs: pd.DataFrame) -> str:
    """Markdown: what the runs show, in sentences; medians with kept pages, and with glibc's defaults in brackets."""
    lines = []
    for words, targets in _sentences():
        found = [target.ratios(runs).groupby('allocator').median() for target in targets]
        if all(len(one) for one in found):
            shown = (
                ' / '.join(f'{one[name]:.2f}' for name in ('keeps pages', 'glibc') if name in one) for one in found
            )
            lines.append('* ' + words.format(*shown))
    return '\n'.join(lines)


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
    return tabulate(lines, header, tablefmt='github', disable_numparse=True) if len(runs) else ''


def targets_text(runs: pd.DataFrame) -> str:
    """Markdown: medians / largest by allocator, and whether the median with kept pages is within the bound."""
    lines = []
    for target in TARGETS:
        ratios = target.ratios(runs)
        if len(ratios):
            by = ratios.groupby('allocator', sort=False).agg(['median', 'max'])
            cells = {name: f'{one["median"]:.2f} / {one["max"]:.2f}' for name, one in by.iterrows()}
            kept = by['median'].get('keeps pages', float('nan'))
            met = '–' if kept != kept else 'met' if kept <= target.bound else 'not met'
            lines.append((target.title, f'{target.bound:.2f}', *(cells.get(name, '–') for name in ALLOCATORS), met))
    header = ('ratio', 'at most', *ALLOCATORS, '')
    return tabulate(lines, header, tablefmt='github', disable_numparse=True) if lines else ''
