"""Memory against sequence length, for the attentions that SOFT compares (2110.11945, Fig. 1, right)."""
import weakref
from typing import Dict

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmsoft.attention import Site, build_attention
from mmsoft.layers import PreNormBlock
from ..contenders import UnfusedAttention
from .inputs import BLACK, BLUE, GREEN, ORANGE, RED, Inputs, new_figure, plain

TITLE = 'Memory of a plain ViT against its tokens'
ATTENTIONS = {
    'Transformer, unfused': (UnfusedAttention, BLACK, 'o-'),
    'Performer': ('PerformerAttention', GREEN, '^-'),
    'Nyströmformer': ('NystromformerAttention', BLUE, 'v-'),
    'Linformer': ('LinformerAttention', ORANGE, 's-'),
    'SOFT': ('SOFTAttention', RED, 'D-'),
    'Transformer, fused kernel': ('SoftmaxAttention', BLACK, ':'),
}
PASSES = {'inference: forward': False, 'training: forward + backward': True}
DIMS, HEADS, DEPTH, TOKENS = 384, 12, 12, 7


class PeakBytes(TorchDispatchMode):
    """Bytes of the tensors that were made within it and live at the same time, at most, as :attr:`peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.storages: Dict[int, weakref.finalize] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = _storages(out)
        for key in made.keys() - _storages((args, kwargs)).keys() - self.storages.keys():
            self.storages[key] = weakref.finalize(made[key], self._leave, key, made[key].nbytes())
            self.live += made[key].nbytes()
        self.peak = max(self.peak, self.live)
        return out

    def _leave(self, key: int, size: int) -> None:
        del self.storages[key]
        self.live -= size


def _storages(tree) -> Dict[int, torch.UntypedStorage]:
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return {id(storage): storage for storage in (tensor.untyped_storage() for tensor in tensors)}


def peak(attention: str, ratio: int, backward: bool, depth: int = DEPTH) -> int:
    """Peak bytes above weights and input of the forward, or the forward and backward, pass of one sequence.

    Nothing is computed: fake tensors have a size but no content. Softmax attention is a product, a softmax and a
    product, as in 2021, or one fused kernel.

    Args:
        attention (str): Key of :data:`ATTENTIONS`.
        ratio (int): Side of the windows of which the map has 7×7, each with a bottleneck token.
        backward (bool): Whether to run backward as well.
        depth (int): Number of blocks.
    """
    side = TOKENS * ratio
    site = Site(DIMS, HEADS, (side, side), ratio)
    cfg = dict(type=ATTENTIONS[attention][0])
    with FakeTensorMode(), torch.set_grad_enabled(backward):
        blocks = [PreNormBlock(build_attention(cfg, site), DIMS) for _ in range(depth)]
        x = torch.empty(1, side * side, DIMS)
        with PeakBytes() as mode:
            for block in blocks:
                x = block(x, (side, side))
            if backward:
                x.mean().backward()
    return mode.peak


def measure(inputs: Inputs) -> pd.DataFrame:
    """Peak ``bytes`` by ``attention``, ``pass`` and ``tokens``."""
    ratios, depth = ((2, 4), 1) if inputs.quick else (range(4, 12), DEPTH)
    return pd.DataFrame([{'attention': attention, 'pass': name, 'tokens': (TOKENS * ratio)**2,
                          'bytes': peak(attention, ratio, backward, depth)}
                         for attention in ATTENTIONS for name, backward in PASSES.items() for ratio in ratios])


def growth(rows: pd.DataFrame) -> float:
    """Exponent with which bytes grow with tokens, over the longer half of the sequences."""
    longer = rows[rows.tokens >= rows.tokens.median()]
    return np.polyfit(np.log(longer.tokens), np.log(longer.bytes), 1)[0]


def draw(table: pd.DataFrame, inputs: Inputs) -> Figure:
    """A panel a pass, a line an attention."""
    figure, (panels, ) = new_figure(
        1, 2, 5, 5, f'{TITLE} (12 blocks, {DIMS} channels, {HEADS} heads, 49 bottleneck tokens, one sequence, float32)')
    for panel, name in zip(panels, PASSES):
        for attention, (_, colour, style) in ATTENTIONS.items():
            rows = table[(table.attention == attention) & (table['pass'] == name)]
            label = f'{attention} (n$^{{{growth(rows):.1f}}}$)'
            panel.plot(rows.tokens, rows.bytes / 1e9, style, color=colour, label=label, markersize=5)
        plain(panel, title=name, xlabel='tokens n', ylabel='peak above the weights, GB (counted)',
              xscale='log', yscale='log', ticks=sorted(table.tokens.unique()))
        panel.yaxis.set_major_formatter('{x:g}')
        panel.legend(frameon=False, fontsize=9, loc='upper center', bbox_to_anchor=(0.5, -0.17), ncols=2)
    return figure
