"""How tokens become queries, keys and values: by a linear map, or by convolutions."""
from collections import OrderedDict
from typing import Tuple

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, Sequential
from torch import Tensor, nn

from .token_map import to_map, to_tokens

QKV = Tuple[Tensor, Tensor, Tensor]


class LinearQKV(nn.Linear):
    """One linear map for all three.

    Args:
        embed_dims (int): Channels C.
        num_heads (int): Heads h, which divide C.
    """

    def __init__(self, embed_dims: int, num_heads: int) -> None:
        super().__init__(embed_dims, 3 * embed_dims)
        self.num_heads = num_heads

    def forward(self, x: Tensor, hw: Tuple[int, int]) -> QKV:
        """Tokens of shape (B, n, C) to three of shape (B, h, n, C / h)."""
        return super().forward(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()


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


class ConvQKV(BaseModule):
    """A convolutional projection for each of the three (CvT, 2103.15808, Sec. 3.2).

    Args:
        embed_dims (int): Channels C.
        num_heads (int): Heads h, which divide C.
        kv_stride (int): Stride of the keys' and values' convolutions. Defaults to 2.
        norm_cfg (dict): Norm of the convolutions. Defaults to BatchNorm.
    """

    def __init__(self, embed_dims: int, num_heads: int, kv_stride: int = 2, norm_cfg: dict = dict(type='BN')) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q = ConvProjection(embed_dims, 1, norm_cfg)
        self.k = ConvProjection(embed_dims, kv_stride, norm_cfg)
        self.v = ConvProjection(embed_dims, kv_stride, norm_cfg)

    def forward(self, x: Tensor, hw: Tuple[int, int]) -> QKV:
        """Tokens of shape (B, [1 +] n, C) to (B, h, [1 +] n, C / h), and twice (B, h, [1 +] m, C / h)."""
        return tuple(project(x, hw).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
                     for project in (self.q, self.k, self.v))
