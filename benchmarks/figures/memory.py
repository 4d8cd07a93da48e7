"""Memory against sequence length, for the attentions that SOFT compares (2110.11945, Fig. 1, right)."""

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from mmsoft.attention import Site, build_attention
from mmsoft.layers.blocks import PreNormBlock

from ..contenders import UnfusedAttention
from .inputs import BLACK, BLUE, GREEN, ORANGE, RED, end_label, new_figure, plain

TITLE = 'What a plain ViT keeps for its backward pass, against its tokens (counted)'
USES = ()  # no network: attentions alone
ATTENTIONS = {
    'Transformer, unfused': (UnfusedAttention, BLACK, 'o-'),
    'Performer': ('PerformerAttention', GREEN, '^-'),
    'Nyströmformer': ('NystromformerAttention', BLUE, 'v-'),
    'Linformer': ('LinformerAttention', ORANGE, 's-'),
    'SOFT': ('SOFTAttention', RED, 'D-'),
    'Transformer, fused kernel': ('SoftmaxAttention', BLACK, ':'),
}
DIMS, HEADS, DEPTH, TOKENS = 384, 12, 12, 7
RATIOS = range(4, 12)
SHIFTS = {'SOFT': 7, 'Transformer, fused kernel': -4, 'Linformer': -7}  # points, of labels that would meet


def kept_bytes(attention: str, ratio: int, depth: int) -> int:
    """Bytes that a forward pass of one sequence keeps for the backward pass, without the weights.

    Nothing is computed: fake tensors have a size but no content. The map has 7×7 windows of side ``ratio``, each with a
    bottleneck token.
    """
    side = TOKENS * ratio
    site = Site(DIMS, HEADS, (side, side), ratio)
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with FakeTensorMode(), saved_tensors_hooks(keep, lambda tensor: tensor):
        cfg = dict(type=ATTENTIONS[attention][0])
        blocks = nn.ModuleList(PreNormBlock(build_attention(cfg, site), DIMS) for _ in range(depth))
        x = torch.empty(1, side * side, DIMS)
        for block in blocks:
            x = block(x, (side, side))
        weights = {tensor.untyped_storage()._cdata for tensor in (*blocks.parameters(), *blocks.buffers())}
        return sum(storage.nbytes() for key, storage in kept.items() if key not in weights)


def measure(networks: dict[str, nn.Module]) -> pd.DataFrame:
    """``bytes`` by ``attention`` and ``tokens``."""
    rows = [(name, (TOKENS * ratio) ** 2, kept_bytes(name, ratio, DEPTH)) for name in ATTENTIONS for ratio in RATIOS]
    return pd.DataFrame(rows, columns=['attention', 'tokens', 'bytes'])


def draw(table: pd.DataFrame, weights: str) -> Figure:
    """A line an attention, with its name and how it grows at its end."""
    figure, ((panel,),) = new_figure(1, 1, 7, 5, TITLE)
    for attention, rows in table.groupby('attention', sort=False):
        _, colour, style = ATTENTIONS[attention]
        longer = rows[rows.tokens >= rows.tokens.median()]
        growth = np.polyfit(np.log(longer.tokens), np.log(longer.bytes), 1)[0]
        panel.plot(rows.tokens, rows.bytes / 1e9, style, color=colour, markersize=5)
        label, end = f'{attention}, n$^{{{growth:.1f}}}$', (rows.tokens.max(), rows.bytes.max() / 1e9)
        end_label(panel, label, *end, colour, SHIFTS.get(attention, 0))
    plain(
        panel,
        xlabel=f'tokens n ({DEPTH} blocks, {DIMS} channels, {HEADS} heads, 49 bottleneck tokens, float32)',
        ylabel='GB for one sequence',
        xscale='log',
        yscale='log',
        xlim=(None, 2.8 * table.tokens.max()),
        ticks=sorted(table.tokens.unique())[::2],
    )
    panel.yaxis.set_major_formatter('{x:g}')
    return figure
