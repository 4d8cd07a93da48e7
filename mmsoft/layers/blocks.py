"""Transformer blocks: attention and FFN with their residual connections, normalised after or before."""
from typing import Callable, Tuple

import torch
import torch.utils.checkpoint as cp
from mmcv.cnn.bricks import DropPath
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule
from torch import Tensor, nn


class Residual(nn.Sequential):
    """Elementwise dropout, then stochastic depth, of a residual branch."""

    def __init__(self, drop_rate: float = 0., drop_path_rate: float = 0.) -> None:
        super().__init__(nn.Dropout(drop_rate), DropPath(drop_path_rate))


def ffn(embed_dims: int, ratio: float = 4, act_cfg: dict = dict(type='GELU'), drop_rate: float = 0.) -> FFN:
    """Feed-forward network of width ``ratio · embed_dims``, without its residual connection."""
    return FFN(embed_dims, int(ratio * embed_dims), act_cfg=act_cfg, ffn_drop=drop_rate, add_identity=False)


def by_chunks(function: Callable[[Tensor], Tensor], x: Tensor, training: bool, elements: int = 2**20) -> Tensor:
    """Applies what acts on each token alone to runs of tokens (B, n, C), so that a wide intermediate stays in cache.

    In training, where an image's stochastic depth is one draw, with gradients, which need the intermediate anyway, and
    on a GPU, it is applied to all at once.

    Args:
        function (Callable): Maps (B, n, C) to the same for any n.
        x (Tensor): Tokens of shape (B, n, C).
        training (bool): Whether the block is in training.
        elements (int): Of an intermediate four times as wide as the tokens, at a time. Defaults to 2**20.

    Returns:
        Tensor: Shape (B, n, C).
    """
    tokens = max(1, elements // (4 * x.size(0) * x.size(2)))
    if training or torch.is_grad_enabled() or x.device.type != 'cpu' or x.size(1) <= tokens:
        return function(x)
    return torch.cat([function(run) for run in x.split(tokens, dim=1)], dim=1)


def apply_block(block: nn.Module, x: Tensor, *args, with_cp: bool = False) -> Tensor:
    """Calls a block; ``with_cp`` keeps none of what happens in it, the backward pass calls it again."""
    if with_cp and x.requires_grad:
        return cp.checkpoint(block, x, *args, use_reentrant=False)
    return block(x, *args)


class PostNormBlock(BaseModule):
    """``x = LN(x + drop(attn(x)))``, ``x = LN(x + drop(ffn(x)))``: the SOFT layer.

    Args:
        attn (nn.Module): Called with tokens (B, n, C) and the shape of their map.
        embed_dims (int): Channels C.
        drop_rate (float): Elementwise dropout of both branches, which the published code calls drop path.
        drop_path_rate (float): Stochastic depth of both branches.
    """

    def __init__(self, attn: nn.Module, embed_dims: int, drop_rate: float = 0., drop_path_rate: float = 0.) -> None:
        super().__init__()
        self.attn = attn
        self.norm1 = nn.LayerNorm(embed_dims)
        self.ffn = ffn(embed_dims, act_cfg=dict(type='GELU', approximate='tanh'))
        self.norm2 = nn.LayerNorm(embed_dims)
        self.drop = Residual(drop_rate, drop_path_rate)

    def forward(self, x: Tensor, hw: Tuple[int, int]) -> Tensor:
        """Tokens of shape (B, n, C) to the same."""
        x = self.norm1(x + self.drop(self.attn(x, hw)))
        return by_chunks(lambda run: self.norm2(run + self.drop(self.ffn(run))), x, self.training)


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
        self.ffn = ffn(embed_dims, act_cfg=act_cfg)
        self.drop = Residual(drop_rate, drop_path_rate)

    def forward(self, x: Tensor, hw: Tuple[int, int]) -> Tensor:
        """Tokens of shape (B, n, C) to the same."""
        x = x + self.drop(self.attn(self.norm1(x), hw))
        return by_chunks(lambda run: run + self.drop(self.ffn(self.norm2(run))), x, self.training)
