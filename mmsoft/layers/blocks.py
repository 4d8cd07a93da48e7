"""Transformer blocks: attention and feed-forward network with residual connections, post-norm or pre-norm."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Union

import torch
import torch.utils.checkpoint as cp
from mmcv.cnn import build_activation_layer
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmsoft.ops.numerics import is_compiling, is_recording

from .maps import HW

# Elements of an FFN's hidden activations at a time, on a CPU: 8 MB, or more if they are recomputed.
RUN_ELEMENTS, RECOMPUTED_ELEMENTS = 2**21, 2**23


class FFN(BaseModule):
    """Linear map of C to 4 · C channels, activation, by default the exact GELU, and linear map back."""

    def __init__(self, embed_dims: int, act_cfg: dict = dict(type='GELU')) -> None:
        super().__init__()
        first = nn.Sequential(nn.Linear(embed_dims, 4 * embed_dims), build_activation_layer(act_cfg))
        self.layers = nn.Sequential(first, nn.Linear(4 * embed_dims, embed_dims))
        self.recompute = False  # the 4 · C channels in backward; see apply_block

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens (B, n, C) to the same shape; without gradients, a CPU calls the layers on some at a time."""
        recompute = self.recompute and x.requires_grad
        in_graph = is_recording() or is_compiling()  # a graph would fix the number of runs
        runs: Sequence[Tensor] = [x]
        if x.device.type == 'cpu' and not in_graph and (recompute or not torch.is_grad_enabled()):
            elements = RECOMPUTED_ELEMENTS if recompute else RUN_ELEMENTS
            runs = x.split(max(1, elements // max(1, x.size(0) * 4 * x.size(2))), dim=1)
        layers = partial(cp.checkpoint, self.layers, use_reentrant=False) if recompute else self.layers
        outs = [layers(run) for run in runs]
        return torch.cat(outs, dim=1) if len(outs) > 1 else outs[0]


def apply_block(block: nn.Module, x: Tensor, *args: Any, with_cp: Union[bool, str] = False) -> Tensor:
    """Calls a block; ``with_cp`` recomputes it in the backward pass to save memory, ``'ffn'`` only its FFN."""
    if with_cp == 'ffn' or hasattr(block, 'ffn'):  # a user's wrapper of a block may have none
        block.ffn.recompute = with_cp == 'ffn'  # at each call, as timm's set_grad_checkpointing changes with_cp
    if with_cp and with_cp != 'ffn' and x.requires_grad:
        return cp.checkpoint(block, x, *args, use_reentrant=False)
    return block(x, *args)


class PostNormBlock(BaseModule):
    """``x = LN(x + drop(attn(x)))``, ``x = LN(x + drop(ffn(x)))``: the SOFT layer as published.

    ``attn`` is called with tokens (B, n, C = ``embed_dims``) and the shape of their map; dropout is elementwise.
    """

    def __init__(self, attn: nn.Module, embed_dims: int, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.attn = attn
        self.norm1 = nn.LayerNorm(embed_dims)
        self.ffn = FFN(embed_dims, act_cfg=dict(type='GELU', approximate='tanh'))
        self.norm2 = nn.LayerNorm(embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, hw: HW) -> Tensor:
        """Maps tokens of shape (B, n, C), which form a map of shape ``hw``, to the same shape."""
        x = self.norm1(x + self.drop(self.attn(x, hw)))
        return self.norm2(x + self.drop(self.ffn(x)))


class PreNormBlock(BaseModule):
    """``x = x + drop(attn(LN(x)))``, ``x = x + drop(ffn(LN(x)))``: the ViT layer.

    Tokens and arguments are those of :class:`PostNormBlock`. Further arguments are the stochastic depth rate of both
    branches, ``eps`` of the two LayerNorms, and the activation of the FFN, by default the exact GELU.
    """

    def __init__(
        self,
        attn: nn.Module,
        embed_dims: int,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        eps: float = 1e-6,
        act_cfg: dict = dict(type='GELU'),
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims, eps=eps)
        self.attn = attn
        self.norm2 = nn.LayerNorm(embed_dims, eps=eps)
        self.ffn = FFN(embed_dims, act_cfg=act_cfg)
        self.drop = nn.Sequential(nn.Dropout(drop_rate), DropPath(drop_path_rate))

    def forward(self, x: Tensor, hw: HW) -> Tensor:
        x = x + self.drop(self.attn(self.norm1(x), hw))
        return x + self.drop(self.ffn(self.norm2(x)))
