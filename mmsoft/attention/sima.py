"""SimA: queries and keys normalised over the tokens, then multiplied, without softmax."""

from typing import Optional

import torch
from torch import Tensor

from mmsoft.ops import l1_attention, l1_class_attention
from mmsoft.registry import MODELS
from mmsoft.utils import OptionError, check_choice

from .base import MultiheadAttention, Site


@MODELS.register_module()
class SimAAttention(MultiheadAttention):
    r""":math:`\hat q \, (\hat k^\top v)` with channels of l1 norm 1 over the tokens (2206.08898, Sec. 2.2).

    Args:
        p (int, optional): Order of the norm; 2, and None for no norm, are the paper's ablations (2206.08898, Sec. 4.6).
        reference_tokens (int, optional): Number of tokens at the image size of training: 196 for 224² in patches of 16
            (197 with DeiT's class token). The l1 norms make SimA's output fall as 1/n with the n queries. This option
            multiplies it by n / ``reference_tokens``, which keeps its scale on larger images. None: as published.
    """

    takes_mask = True

    def __init__(self, site: Site, p: Optional[int] = 1, reference_tokens: Optional[int] = None) -> None:
        super().__init__(site)
        check_choice('p', p, (1, 2, None))
        if reference_tokens is not None and reference_tokens < 1:
            raise OptionError(f'reference_tokens must be at least 1; got {reference_tokens}')
        self.p, self.reference_tokens = p, reference_tokens
        self.kind += f'(p={p})' if p != 1 else ''

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        return self._rescale(l1_attention(q, k, v, mask, self.p), q, mask)

    def _rescale(self, out: Tensor, q: Tensor, mask: Optional[Tensor], extra: int = 0) -> Tensor:
        """Rescales the output from the number of queries, without ``extra`` of them, to ``reference_tokens``."""
        if self.reference_tokens is None:
            return out
        wide = torch.promote_types(out.dtype, torch.float32)
        queries = q.size(2) if mask is None else mask.sum(1, dtype=wide).view(-1, 1, 1, 1)
        return (out * ((queries - extra) / self.reference_tokens)).to(out.dtype)

    def class_attention(self) -> dict:
        return dict(type='SimAClassAttention', p=self.p, reference_tokens=self.reference_tokens)


@MODELS.register_module()
class SimAClassAttention(SimAAttention):
    """SimA with XCiT's class token, the first token, as the only query: (B, 1, C). It is no reference token."""

    for_class_token = True

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        return self._rescale(l1_class_attention(q, k, v, mask, self.p), q, mask, extra=1)
