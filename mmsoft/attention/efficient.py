"""Efficient attention: two softmaxes, one over channels and one over tokens, instead of one over both."""

from typing import Optional

from torch import Tensor

from mmsoft.ops.numerics import at_least_float32
from mmsoft.registry import MODELS

from .base import MultiheadAttention


@MODELS.register_module()
class EfficientAttention(MultiheadAttention):
    r""":math:`\rho_q(q) \, (\rho_k(k)^\top v)`, linear in the tokens (Shen et al., 1812.01243; 2206.08898, Table 2).

    :math:`\rho_q` is a softmax over the channels of each query, :math:`\rho_k` over the tokens of each key channel.
    """

    takes_mask = True

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        if mask is not None:
            k = k.masked_fill(~mask[:, None, :, None], float('-inf'))
        return efficient_product(q, k, v)


@at_least_float32
def efficient_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Product of (B, h, n, d), (B, h, m, d), (B, h, m, c), in float32: a softmax over m tokens is of order 1/m."""
    return q.softmax(-1) @ (k.softmax(-2).transpose(-2, -1) @ v)
