"""Attention whose queries, keys and values come from convolutions (CvT, Sec. 3.2)."""
from collections import OrderedDict
from typing import Callable, Tuple

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, Sequential
from torch import Tensor, nn

from .token_map import to_map, to_tokens


class QuickGELU(nn.Module):
    """``x · sigmoid(1.702 x)``, CvT's approximation of the GELU."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same."""
        return x * torch.sigmoid(1.702 * x)


class ConvProjection(Sequential):
    """Depthwise 3×3 convolution and norm, which a class token in front of the tokens skips, and a linear map.

    Args:
        embed_dims (int): Channels C.
        stride (int): Of the convolution.
        norm_cfg (dict): Norm. Defaults to BatchNorm.
    """

    def __init__(self, embed_dims: int, stride: int, norm_cfg: dict = dict(type='BN')) -> None:
        super().__init__(
            OrderedDict(
                conv=nn.Conv2d(embed_dims, embed_dims, 3, stride, padding=1, groups=embed_dims, bias=False),
                norm=build_norm_layer(norm_cfg, embed_dims)[1],
                proj=nn.Linear(embed_dims, embed_dims)))

    def forward(self, x: Tensor, hw: Tuple[int, int]) -> Tensor:
        """Tokens of shape (B, [1 +] H' · W', C) to (B, [1 +] ceil(H' / stride) · ceil(W' / stride), C)."""
        extra = x.size(1) - hw[0] * hw[1]
        y = to_tokens(self.norm(self.conv(to_map(x[:, extra:], hw))))
        return self.proj(torch.cat([x[:, :extra], y], dim=1) if extra else y)


class ConvAttention(BaseModule):
    """Multi-head attention with a convolutional projection each for queries, keys and values.

    Args:
        embed_dims (int): Channels C.
        num_heads (int): Heads h, which divide C.
        attend (Callable): Maps q of shape (B, h, n, C / h) and k and v of shape (B, h, m, C / h) to the shape of q.
        kv_stride (int): Stride of the keys' and values' convolutions. Defaults to 2.
        norm_cfg (dict): Norm of the convolutions. Defaults to BatchNorm.

    Raises:
        ValueError: If the heads do not divide the channels.
    """

    def __init__(self,
                 embed_dims: int,
                 num_heads: int,
                 attend: Callable,
                 kv_stride: int = 2,
                 norm_cfg: dict = dict(type='BN')) -> None:
        super().__init__()
        if embed_dims % num_heads:
            raise ValueError(f'{num_heads} heads do not divide {embed_dims} channels')
        self.num_heads = num_heads
        self.attend = attend
        self.q = ConvProjection(embed_dims, 1, norm_cfg)
        self.k = ConvProjection(embed_dims, kv_stride, norm_cfg)
        self.v = ConvProjection(embed_dims, kv_stride, norm_cfg)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor, hw: Tuple[int, int]) -> Tensor:
        """Attends over tokens of shape (B, [1 +] n, C) that form a map of shape ``hw`` behind the class token."""
        q, k, v = (project(x, hw).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
                   for project in (self.q, self.k, self.v))
        return self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2))
