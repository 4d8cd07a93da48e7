"""CosFormer: ReLU in place of exponentials, with or without a cosine of positions."""

import math
from typing import Optional

import torch
from torch import Tensor

from mmsoft.layers.maps import HW
from mmsoft.ops.numerics import at_least_float32
from mmsoft.registry import MODELS

from .base import MultiheadAttention, Site


@MODELS.register_module()
class CosFormerAttention(MultiheadAttention):
    r""":math:`\phi(q)(\phi(k)^\top v)` divided by :math:`\phi(q) \sum_j \phi(k_j)`, with φ = ReLU (2202.08791, Eq. 8).

    With ``reweight``, each weight is multiplied by :math:`\cos(i - i') \cos(j - j')`. Rows i and columns j of tokens
    run from 0 to π/2 over the map, as in SimA's extension of CosFormer to images (2206.08898, App. A.3): four products
    instead of one. Class tokens have the first row and column. Convolutional projections are not used.

    Args:
        reweight (bool): Whether to use the cosines. Defaults to False, as in 2206.08898, Table 2.
    """

    def __init__(self, site: Site, reweight: bool = False) -> None:
        super().__init__(site._replace(project=None))
        self.reweight = reweight
        self.kind += '(reweight=True)' if reweight else ''

    def attend(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None) -> Tensor:
        q, k, v = self.split_heads(x, hw)
        q, k = q.relu(), k.relu()
        if self.reweight:
            waves = _waves(hw, x.size(1) - hw[0] * hw[1], x)
            q, k = ((t.unsqueeze(-2) * waves).flatten(-2) for t in (q, k))
        return self.merge_heads(weighted_mean(q, k, v, eps=1e-6))


@at_least_float32
def weighted_mean(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """Mean (B, h, n, c) of values (B, h, m, c), weighted by q kᵀ ≥ 0 of (B, h, n, d) and (B, h, m, d)."""
    return q @ (k.transpose(-2, -1) @ v) / (q @ k.sum(-2).unsqueeze(-1)).clamp(min=eps)


def _waves(hw: HW, extra: int, like: Tensor) -> Tensor:
    """The four products of cosine and sine of row and column, for each token: (extra + H' · W', 4, 1)."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    angles = (torch.arange(n, dtype=dtype, device=like.device) * (math.pi / 2 / n) for n in hw)
    rows, columns = (torch.stack([angle.cos(), angle.sin()], dim=-1) for angle in angles)
    waves = (rows[:, None, :, None] * columns[None, :, None, :]).flatten(0, 1).flatten(1)
    return torch.cat([waves[:1].expand(extra, -1), waves]).unsqueeze(-1).to(like.dtype)
