"""Blocks of XCiT: for the patches, and for the class token behind them."""
from typing import Optional, Tuple

import torch
from mmcv.cnn import build_activation_layer, build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from .blocks import BranchDropout
from .ffn import FFN
from .token_map import to_map, to_tokens


class LocalPatchInteraction(BaseModule):
    """Depthwise 3×3 convolution, activation, norm, depthwise 3×3 convolution (XCiT, 2106.09681, Sec. 3).

    Args:
        embed_dims (int): Channels C.
        act_cfg (dict): Activation. Defaults to the exact GELU.
        norm_cfg (dict): Norm. Defaults to BatchNorm.
    """

    def __init__(self, embed_dims: int, act_cfg: dict = dict(type='GELU'), norm_cfg: dict = dict(type='BN')) -> None:
        super().__init__()
        # First of all: mmcv's fuse_conv_bn folds a norm into the convolution named before it, activation or not.
        self.norm = build_norm_layer(norm_cfg, embed_dims)[1]
        self.conv1 = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)
        self.act = build_activation_layer(act_cfg)
        self.conv2 = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)

    def forward(self, x: Tensor, hw: Tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """Tokens of shape (B, n, C) that form a map of shape ``hw`` to the same; zero outside (B, 1, H', W')."""
        x = to_map(x, hw)
        x = self.norm(self.act(self.conv1(x if mask is None else x * mask)))
        x = self.conv2(x if mask is None else x * mask)
        return to_tokens(x)


class XCiTBlock(BaseModule):
    """Attention, local patch interaction and FFN, each with a norm before and a scale γ of its channels behind it.

    γ and norm of the local patch interaction have the number 3, though it comes second: the published names.

    Args:
        attn (nn.Module): Called with tokens (B, n, C), the shape of their map and a mask or None.
        embed_dims (int): Channels C.
        gamma (float): Initial γ. Defaults to 1.
        lpi (bool): With local patch interaction. Defaults to True.
        drop_rate (float): Elementwise dropout of the branches.
        drop_path_rate (float): Stochastic depth of the branches.
        act_cfg (dict): Activation. Defaults to the exact GELU.
        norm_cfg (dict): Norm of the local patch interaction. Defaults to BatchNorm.
    """

    def __init__(self,
                 attn: nn.Module,
                 embed_dims: int,
                 gamma: float = 1.,
                 lpi: bool = True,
                 drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 act_cfg: dict = dict(type='GELU'),
                 norm_cfg: dict = dict(type='BN')) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.attn = attn
        self.gamma1 = nn.Parameter(torch.full((embed_dims, ), gamma))
        self.lpi = LocalPatchInteraction(embed_dims, act_cfg, norm_cfg) if lpi else None
        if lpi:
            self.norm3 = nn.LayerNorm(embed_dims, eps=1e-6)
            self.gamma3 = nn.Parameter(torch.full((embed_dims, ), gamma))
        self.norm2 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.ffn = FFN(embed_dims, act_cfg=act_cfg)
        self.gamma2 = nn.Parameter(torch.full((embed_dims, ), gamma))
        self.drop = BranchDropout(drop_rate, drop_path_rate)

    def forward(self, x: Tensor, hw: Tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """Tokens of shape (B, n, C) that form a map of shape ``hw`` to the same.

        Where ``mask``, of shape (B, 1, H', W'), is false, tokens neither attend nor interact.
        """
        x = x + self.drop(self.gamma1 * self.attn(self.norm1(x), hw, mask))
        if self.lpi is not None:
            x = x + self.drop(self.gamma3 * self.lpi(self.norm3(x), hw, mask))
        return x + self.drop(self.gamma2 * self.ffn(self.norm2(x)))


class ClassAttentionBlock(BaseModule):
    """Class attention (CaiT, 2103.17239, Sec. 3): only the class token, the first one, attends.

    The published block also changes the other tokens, and trained weights rely on it: the attention's branch gives
    them their own norm, γ1·LN1(x), and the FFN's branch gives them themselves once more.

    Args:
        attn (nn.Module): Called with tokens (B, 1 + n, C), the shape of the map behind the first one, and a mask or
            None. Only the first token of what it returns counts.
        embed_dims (int): Channels C.
        gamma (float): Initial γ. Defaults to 1.
        norm_tokens (bool): The second LayerNorm is over all tokens; otherwise, over the class token alone.
        act_cfg (dict): Activation. Defaults to the exact GELU.
    """

    def __init__(self,
                 attn: nn.Module,
                 embed_dims: int,
                 gamma: float = 1.,
                 norm_tokens: bool = True,
                 act_cfg: dict = dict(type='GELU')) -> None:
        super().__init__()
        self.norm_tokens = norm_tokens
        self.norm1 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.attn = attn
        self.gamma1 = nn.Parameter(torch.full((embed_dims, ), gamma))
        self.norm2 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.ffn = FFN(embed_dims, act_cfg=act_cfg)
        self.gamma2 = nn.Parameter(torch.full((embed_dims, ), gamma))

    def forward(self, x: Tensor, hw: Tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """Tokens of shape (B, 1 + n, C), class token in front of a map's, to the same; mask as above."""
        y = self.norm1(x)
        x = x + self.gamma1 * torch.cat([self.attn(y, hw, mask)[:, :1], y[:, 1:]], dim=1)
        cls, tokens = x[:, :1], x[:, 1:]
        cls = self.norm2(cls)
        if self.norm_tokens:
            tokens = self.norm2(tokens)
        return torch.cat([cls + self.gamma2 * self.ffn(cls), 2 * tokens], dim=1)
