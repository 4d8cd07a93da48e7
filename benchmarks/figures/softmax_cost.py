"""What softmax costs, at the same order of products (2206.08898, Fig. 1): seconds of one block."""
import statistics
import time
import timeit
from typing import Callable, Dict, Optional

import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from mmsoft.attention import MultiheadAttention, SimAAttention, Site, SoftmaxAttention
from mmsoft.layers import PreNormBlock
from mmsoft.layers.xcit import XCiTBlock
from ..contenders import UnfusedAttention
from .inputs import BLUE, ORANGE, RED, Inputs, new_figure, plain

TITLE = 'Seconds of a block with softmax, as a multiple of SimA\'s with the products in the same order'
SIDES, WIDTHS = (224, 384, 512, 768, 1024), (384, 768, 1536, 3072)
PAPER = dict(side=(1536, 1.58), width=(8192, 1.22))
AXES = dict(side='image side at width 384, products over tokens (DeiT)',
            width='width D at 224², 8 heads, products over channels (XCiT)')
PAIRS = dict(side=dict(unfused=('softmax, unfused', RED), fused=('softmax, fused kernel', ORANGE)),
             width=dict(xca=('XCiT\'s softmax over channels', BLUE)))
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
    """Blocks at one place of an axis, ready to be called, on one image's random tokens; ``'sima'`` is one."""
    side = (value if axis == 'side' else 224) // 16
    width, heads = (384, 6) if axis == 'side' else (value, 8)
    site = Site(width, heads, (side, side))
    extra = int(axis == 'side')
    if axis == 'side':
        attentions = dict(sima=SimAAttention(site, order='tokens'), unfused=UnfusedAttention(site),
                          fused=SoftmaxAttention(site))
        made = {name: PreNormBlock(attention, width) for name, attention in attentions.items()}
    else:
        attentions = dict(sima=SimAAttention(site, order='channels'), xca=CrossCovarianceAttention(site))
        made = {name: XCiTBlock(attention, width) for name, attention in attentions.items()}
    x = torch.randn(1, extra + side * side, width)
    return {name: (lambda block=block.eval(): block(x, (side, side))) for name, block in made.items()}


@torch.no_grad()
def measure(inputs: Inputs) -> pd.DataFrame:
    """``seconds`` of one core, the median of rounds in which blocks have turns, by ``axis``, ``value`` and ``block``.

    They are those that the processor works, not those of the clock, so that others at work matter less.
    """
    rows, threads, rounds = [], torch.get_num_threads(), 1 if inputs.quick else ROUNDS
    torch.set_num_threads(1)
    for axis, values in dict(side=SIDES, width=WIDTHS).items():
        for value in values[:1 if inputs.quick else None]:
            made = blocks(axis, value)
            often = {name: max(1, int(0.1 / _seconds(block, 1))) for name, block in made.items()}
            times = [{name: _seconds(block, often[name]) for name, block in made.items()} for _ in range(rounds)]
            rows += [dict(axis=axis, value=value, block=name,
                          seconds=statistics.median(each[name] for each in times),
                          ratio=statistics.median(each[name] / each['sima'] for each in times)) for name in made]
    torch.set_num_threads(threads)
    return pd.DataFrame(rows)


def _seconds(block: Callable[[], Tensor], number: int) -> float:
    return timeit.timeit(block, timer=time.process_time, number=number) / number


def draw(table: pd.DataFrame, inputs: Inputs) -> Figure:
    """A panel an axis; the paper's networks, on a GPU, as a star."""
    figure, (panels, ) = new_figure(
        1, 2, 5, 4, f'{TITLE}\n(one image, one core, float32)', sharey=True)
    for panel, (axis, label) in zip(panels, AXES.items()):
        for name, (title, colour) in PAIRS[axis].items():
            rows = table[(table['axis'] == axis) & (table.block == name)]
            panel.plot(rows.value, rows.ratio, 'o-', color=colour, label=title)
        panel.plot(*PAPER[axis], '*', color='black', markersize=12, label='the paper: whole networks, GPU')
        panel.axhline(1, color='grey', linestyle=':')
        panel.margins(y=0.12)
        plain(panel, xscale='log', xlabel=label, ylim=(0, None),
              ticks=sorted({*table[table['axis'] == axis].value, PAPER[axis][0]}))
        panel.legend(frameon=False, fontsize=9, loc='lower right')
    panels[0].set_ylabel('time : SimA\'s time')
    return figure
