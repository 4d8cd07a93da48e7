"""Transformer blocks: attention and FFN with their residual connections, normalised after or before."""
from typing import Optional, Tuple

import torch.utils.checkpoint as cp
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from torch import Tensor, nn

from .ffn import FFN


class BranchDropout(nn.Sequential):
    """Elementwise dropout, then stochastic depth, of a residual branch."""

    def __init__(self, drop_rate: float = 0., drop_path_rate: float = 0.) -> None:
        super().__init__(nn.Dropout(drop_rate), DropPath(drop_path_rate))


def apply_block(block: nn.Module, x: Tensor, *args, with_cp: bool = False) -> Tensor:
    """Calls a block; ``with_cp`` keeps none of what happens in it, the backward pass calls it again."""
    if with_cp and x.requires_grad:
        return cp.checkpoint(block, x, *args, use_reentrant=False)
    return block(x, *args)


class PostNormBlock(BaseModule):
    """``x = LN(x + drop(attn(x)))``, ``x = LN(x + drop(ffn(x)))``: the SOFT layer as published.

    Args:
        attn (nn.Module): Called with tokens (B, n, C) and the shape of their map.
        embed_dims (int): Channels C.
        drop_rate (float): Elementwise dropout of both branches.
        drop_path_rate (float): Stochastic depth of both branches.
    """

    def __init__(self, attn: nn.Module, embed_dims: int, drop_rate: float = 0., drop_path_rate: float = 0.) -> None:
        super().__init__()
        self.attn = attn
        self.norm1 = nn.LayerNorm(embed_dims)
        self.ffn = FFN(embed_dims, act_cfg=dict(type='GELU', approximate='tanh'))
        self.norm2 = nn.LayerNorm(embed_dims)
        self.drop = BranchDropout(drop_rate, drop_path_rate)

    def forward(self, x: Tensor, hw: Tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """Tokens of shape (B, n, C) to the same; see :class:`mmsoft.attention.Attention` for ``hw`` and ``mask``."""
        x = self.norm1(x + self.drop(self.attn(x, hw, mask)))
        return self.norm2(x + self.drop(self.ffn(x)))


class PreNormBlock(BaseModule):
    """``x = x + drop(attn(LN(x)))``, ``x = x + drop(ffn(LN(x)))``: the ViT layer.

    Args:
        attn (nn.Module): Called with tokens (B, n, C) and the shape of their map.
        embed_dims (int): Channels C.
        drop_rate (float): Elementwise dropout of both branches.
        drop_path_rate (float): Stochastic depth of both branches.
        eps (float): Of the two LayerNorms. Defaults to 1e-6.
        act_cfg (dict): Activation of the FFN. Defaults to the exact GELU.
    """

    def __init__(self,
                 attn: nn.Module,
                 embed_dims: int,
                 drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 eps: float = 1e-6,
                 act_cfg: dict = dict(type='GELU')) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims, eps=eps)
        self.attn = attn
        self.norm2 = nn.LayerNorm(embed_dims, eps=eps)
        self.ffn = FFN(embed_dims, act_cfg=act_cfg)
        self.drop = BranchDropout(drop_rate, drop_path_rate)

    def forward(self, x: Tensor, hw: Tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """Tokens of shape (B, n, C) to the same; see :class:`mmsoft.attention.Attention` for ``hw`` and ``mask``."""
        x = x + self.drop(self.attn(self.norm1(x), hw, mask))
        return x + self.drop(self.ffn(self.norm2(x)))
