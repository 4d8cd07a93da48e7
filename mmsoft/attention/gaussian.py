"""Exact Gaussian attention, which SOFT approximates."""
from typing import Optional, Tuple

from torch import Tensor, nn

from mmsoft.ops import gaussian_attention
from mmsoft.registry import MODELS
from .base import Attention, Site


@MODELS.register_module()
class GaussianAttention(Attention):
    r""":math:`S v` with :math:`S_{ij} = \exp(-\|q_i - q_j\|^2 / 2\sqrt d)`, without normalisation (2110.11945, Eq. 4).

    Keys equal queries. Its cost is quadratic in the tokens, its memory is not. The papers report that networks of it
    do not converge (2207.03341, App. B).
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.scale = (site.dims // site.heads)**-0.25
        self.query = nn.Linear(site.dims, site.dims)
        self.value = nn.Linear(site.dims, site.dims)
        self.proj = nn.Linear(site.dims, site.dims)

    def attend(self, x: Tensor, hw: Tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`Attention`."""
        q, v = (t.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for t in (self.query(x), self.value(x)))
        return self.proj(gaussian_attention(q * self.scale, v).transpose(1, 2).flatten(2))
