"""Attentions of XCiT's class token alone, to all tokens: (B, 1, C)."""

from typing import Optional

from torch import Tensor

from mmsoft.ops import l1_class_attention
from mmsoft.registry import MODELS

from .base import MultiheadAttention, Site
from .softmax import SoftmaxAttention


@MODELS.register_module()
class SimAClassAttention(MultiheadAttention):
    """SimA of the first token; for ``p`` see :class:`SimAAttention`."""

    takes_mask = True
    for_class_token = True

    def __init__(self, site: Site, p: Optional[int] = 1) -> None:
        super().__init__(site)
        self.p = p

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`MultiheadAttention`."""
        return l1_class_attention(q, k, v, mask, p=self.p)


@MODELS.register_module()
class SoftmaxClassAttention(SoftmaxAttention):
    """Softmax attention of the first token."""

    for_class_token = True

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`MultiheadAttention`."""
        return super().product(q[:, :, :1], k, v, mask)
