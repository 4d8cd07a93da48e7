"""Exact Gaussian attention, which SOFT approximates."""

from typing import Optional

import torch
from torch import Tensor, nn

from mmsoft.layers.maps import HW
from mmsoft.ops import gaussian_kernel, gaussian_product
from mmsoft.ops.numerics import at_least_float32
from mmsoft.registry import MODELS
from mmsoft.utils import check_choice

from .base import Attention, Site


@MODELS.register_module()
class GaussianAttention(Attention):
    r""":math:`S v` with :math:`S_{ij} = \exp(-\|q_i - q_j\|^2 / 2\sqrt d)`, without normalisation (2110.11945, Eq. 4).

    Keys equal queries. Cost is quadratic in the tokens, memory is not. In 2207.03341, App. B, it does not converge.

    Args:
        normalise (str): ``'none'``; ``'softmax'``: softmax(S) v over rows, in quadratic memory, which the authors also
            tried (2110.11945, App. A.3); ``'mean'``: each row of S over its sum, which is the softmax of S's exponents.
    """

    def __init__(self, site: Site, normalise: str = 'none') -> None:
        super().__init__(site)
        check_choice('normalise', normalise, tuple(PRODUCTS))
        self.product = PRODUCTS[normalise]
        self.kind += f'(normalise={normalise})' if normalise != 'none' else ''
        self.scale = (site.dims // site.heads) ** -0.25
        self.query = nn.Linear(site.dims, site.dims)
        self.value = nn.Linear(site.dims, site.dims)
        self.proj = nn.Linear(site.dims, site.dims)

    def attend(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None) -> Tensor:
        tokens = self.query(x) * self.scale, self.value(x)
        q, v = (t.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for t in tokens)
        return self.merge_heads(self.product(q, q, v))


@at_least_float32
def softmax_of_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(S) v of q = k (B, h, n, d) and v (B, h, n, c); nearly the mean of all values, as S is in (0, 1]."""
    return gaussian_kernel(k).softmax(-1) @ v


@at_least_float32
def mean_by_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Mean of values (B, h, n, c), weighted by the kernel of (B, h, n, d) and (B, h, n, d): (B, h, n, c)."""
    sums = gaussian_product(q, k, torch.cat([v, torch.ones_like(v[..., :1])], dim=-1))
    return sums[..., :-1] / sums[..., -1:]


PRODUCTS = dict(none=gaussian_product, softmax=softmax_of_kernel, mean=mean_by_kernel)
