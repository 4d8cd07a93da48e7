"""Attention modules: SOFT's, and plain multi-head attention around any product of q, k and v."""
from typing import Callable, Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmsoft.ops import soft_attention, soft_norm_attention
from .bottleneck import BottleneckTokens
from .token_map import to_map, to_tokens


class SOFTAttention(BaseModule):
    """Softmax-free attention with a Gaussian kernel and its Nyström decomposition (SOFT, Sec. 3).

    Keys equal queries. A depthwise convolution of the values, one filter per head, is added to the attention. A
    class token in front of the map's tokens attends and is attended to, but takes no part in the convolutions.

    Args:
        embed_dims (int): Channels C.
        num_heads (int): Heads h, which divide C.
        ratio (int): Sampling ratio of the bottleneck tokens.
        kernel_size (int): Size of the depthwise convolution.
        norm (bool): SOFT-Norm instead of SOFT.
        iterations (int): Newton–Raphson steps. Defaults to 20.
        inverse (str): How the inverse is taken, see :func:`mmsoft.ops.inverse_product`. Defaults to ``'auto'``.
        sampling (str): See :class:`BottleneckTokens`. Defaults to ``'conv'``.
        bottleneck_size (int, optional): See :class:`BottleneckTokens`. Defaults to None.

    Raises:
        ValueError: If the heads do not divide the channels.
    """

    def __init__(self,
                 embed_dims: int,
                 num_heads: int,
                 ratio: int,
                 kernel_size: int,
                 norm: bool = False,
                 iterations: int = 20,
                 inverse: str = 'auto',
                 sampling: str = 'conv',
                 bottleneck_size: Optional[int] = None) -> None:
        super().__init__()
        if embed_dims % num_heads:
            raise ValueError(f'{num_heads} heads do not divide {embed_dims} channels')
        head_dims = embed_dims // num_heads
        self.num_heads = num_heads
        self.scale = head_dims**-0.25
        self.attend = soft_norm_attention if norm else soft_attention
        self.options = dict(iterations=iterations, inverse=inverse)
        self.query = nn.Linear(embed_dims, embed_dims)
        self.value = nn.Linear(embed_dims, embed_dims)
        self.bottleneck = BottleneckTokens(head_dims, ratio, sampling, bottleneck_size)
        self.conv = nn.Conv2d(num_heads, num_heads, kernel_size, padding=kernel_size // 2, groups=num_heads, bias=False)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor, hw: Tuple[int, int]) -> Tensor:
        """Attends over tokens of shape (B, n, C) that form a map of shape ``hw``, class token in front if any."""
        batch, n, channels = x.shape
        extra = n - hw[0] * hw[1]
        q, v = self.query(x) * self.scale, self.value(x)
        q, v_heads = (t.view(batch, n, self.num_heads, -1).transpose(1, 2) for t in (q, v))
        q = q.contiguous()  # a head's map in one piece, for its convolution
        q_map = to_map(q[:, :, extra:].flatten(0, 1), hw)
        bottleneck = self.bottleneck(q_map).unflatten(0, (batch, self.num_heads))
        out = self.attend(q, bottleneck, v_heads, **self.options).transpose(1, 2).reshape(batch, n, channels)
        local = self._convolve(v[:, extra:], hw)
        return self.proj(out + (F.pad(local, (0, 0, extra, 0)) if extra else local))

    def _convolve(self, v: Tensor, hw: Tuple[int, int]) -> Tensor:
        """Depthwise convolution of (B, n, C), each head's filter shared by its channels."""
        channels = v.size(2)
        weight = self.conv.weight.repeat_interleave(channels // self.num_heads, dim=0)
        return to_tokens(F.conv2d(to_map(v, hw), weight, padding=self.conv.padding, groups=channels))


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
    """Scaled dot-product attention on (B, h, n, d), (B, h, m, d), (B, h, m, c) to keys in (B, m): (B, h, n, c)."""
    return F.scaled_dot_product_attention(q, k, v, None if mask is None else mask[:, None, None])


class MultiheadAttention(BaseModule):
    """Multi-head self-attention around a given product of queries, keys and values.

    Args:
        embed_dims (int): Channels C.
        num_heads (int): Heads h, which divide C.
        attend (Callable): Maps q, k and v of shape (B, h, n, C / h), and None or a mask of shape (B, n), to
            (B, h, n', C / h). Defaults to :func:`softmax_attention`.

    Raises:
        ValueError: If the heads do not divide the channels.
    """

    def __init__(self, embed_dims: int, num_heads: int, attend: Callable = softmax_attention) -> None:
        super().__init__()
        if embed_dims % num_heads:
            raise ValueError(f'{num_heads} heads do not divide {embed_dims} channels')
        self.num_heads = num_heads
        self.attend = attend
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor, hw: Optional[Tuple[int, int]] = None, mask: Optional[Tensor] = None) -> Tensor:
        """Attends over tokens of shape (B, n, C), or those in ``mask``; their places ``hw`` do not matter here."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(self.attend(q, k, v, mask).transpose(1, 2).flatten(2))
