"""What softmax costs, at the same order of products (2206.08898, Fig. 1): seconds of one block."""
import statistics
from typing import Callable, Dict, Optional

import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from mmsoft.attention import MultiheadAttention, SimAAttention, Site, SoftmaxAttention
from mmsoft.layers import PreNormBlock
from mmsoft.layers.xcit import XCiTBlock
from ..contenders import UnfusedAttention
from .inputs import BLUE, ORANGE, RED, Inputs, new_figure, plain

TITLE = 'Seconds of a block with softmax, as a multiple of SimA\'s with the products in the same order'
VALUES = dict(side=(224, 384, 512, 768, 1024), width=(384, 768, 1536, 3072))
PAPER = dict(side=(1536, 1.58), width=(8192, 1.22))
AXES = dict(side='image side at width 384, products over tokens (DeiT)',
            width='width D at 224², 8 heads, products over channels (XCiT)')
BLOCKS = dict(unfused=('softmax, unfused', RED), fused=('softmax, fused kernel', ORANGE),
              xca=('XCiT\'s softmax over channels', BLUE))
ROUNDS = 5


class CrossCovarianceAttention(MultiheadAttention):
    """XCiT's attention between channels (2106.09681, Sec. 3)."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.temperature = nn.Parameter(torch.ones(site.heads, 1, 1))

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`MultiheadAttention`."""
        q, k = (F.normalize(t, dim=-2) for t in (q, k))
        return v @ (q.transpose(-2, -1) @ k * self.temperature).softmax(-1).transpose(-2, -1)


def blocks(axis: str, value: int) -> Dict[str, Callable[[], Tensor]]:
    """Blocks at one value of an axis, ready to be called on the random tokens of one image."""
    if axis == 'side':
        site, extra = Site(384, 6, (value // 16, ) * 2), 1
        attentions = dict(sima=SimAAttention(site, order='tokens'), unfused=UnfusedAttention(site),
                          fused=SoftmaxAttention(site))
    else:
        site, extra = Site(value, 8, (14, 14)), 0
        attentions = dict(sima=SimAAttention(site, order='channels'), xca=CrossCovarianceAttention(site))
    kind = PreNormBlock if axis == 'side' else XCiTBlock
    x = torch.randn(1, extra + site.grid[0] * site.grid[1], site.dims)
    made = {name: kind(attention, site.dims).eval() for name, attention in attentions.items()}
    return {name: (lambda block=block: block(x, site.grid)) for name, block in made.items()}


@torch.no_grad()
def measure(inputs: Inputs) -> pd.DataFrame:
    """``seconds`` on one core, the median of interleaved rounds, and ``ratio`` by ``axis``, ``value`` and ``block``."""
    rows, rounds = [], 1 if inputs.quick else ROUNDS
    for axis, values in VALUES.items():
        for value in values[:1 if inputs.quick else None]:
            timers = {name: Timer('block()', globals=dict(block=block)) for name, block in blocks(axis, value).items()}
            times = [{name: timer.blocked_autorange(min_run_time=0.1).median for name, timer in timers.items()}
                     for _ in range(rounds)]
            rows += [dict(axis=axis, value=value, block=name, seconds=statistics.median(each[name] for each in times),
                          ratio=statistics.median(each[name] / each['sima'] for each in times)) for name in timers]
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, inputs: Inputs) -> Figure:
    """A panel for each axis; the paper's networks, on a GPU, are a star."""
    figure, (panels, ) = new_figure(1, 2, 5, 4, f'{TITLE}\n(one image, one core, float32)', sharey=True)
    for panel, (axis, label) in zip(panels, AXES.items()):
        chosen = table[table['axis'] == axis]
        for name, rows in chosen[chosen.block != 'sima'].groupby('block'):
            panel.plot(rows.value, rows.ratio, 'o-', color=BLOCKS[name][1], label=BLOCKS[name][0])
        panel.plot(*PAPER[axis], '*', color='black', markersize=12, label='the paper: whole networks, GPU')
        panel.axhline(1, color='grey', linestyle=':')
        panel.margins(y=0.12)
        plain(panel, xscale='log', xlabel=label, ylim=(0, None), ticks=sorted({*chosen.value, PAPER[axis][0]}))
        panel.legend(frameon=False, fontsize=9, loc='lower right')
    panels[0].set_ylabel('time : SimA\'s time')
    return figure
