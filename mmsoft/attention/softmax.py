"""Scaled dot-product attention, the Transformer's."""

from typing import Optional

import torch.nn.functional as F
from torch import Tensor

from mmsoft.registry import MODELS

from .base import MultiheadAttention


@MODELS.register_module()
class SoftmaxAttention(MultiheadAttention):
    r""":math:`\mathrm{softmax}(q k^\top / \sqrt d) \, v` (Vaswani et al., 1706.03762, Eq. 1)."""

    takes_mask = True

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, None if mask is None else mask[:, None, None])

    def class_attention(self) -> dict:
        return dict(type='SoftmaxClassAttention')


@MODELS.register_module()
class SoftmaxClassAttention(SoftmaxAttention):
    """Softmax attention with XCiT's class token, the first token, as the only query: (B, 1, C)."""

    for_class_token = True

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        return super().product(q[:, :, :1], k, v, mask)
