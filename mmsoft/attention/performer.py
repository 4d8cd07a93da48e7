"""Performer: softmax attention by positive random features."""

import math
from typing import Optional

import torch
from torch import Tensor

from mmsoft.ops.numerics import at_least_float32
from mmsoft.registry import MODELS

from .base import MultiheadAttention, Site
from .cosformer import weighted_mean


@MODELS.register_module()
class PerformerAttention(MultiheadAttention):
    r""":math:`\phi(q) (\phi(k)^\top v)` divided by :math:`\phi(q) \sum_j \phi(k_j)` (FAVOR+, 2009.14794, Sec. 2.3).

    :math:`\phi(x)_i = r^{-1/2} \exp(\omega_i \cdot x - \frac12 \|x\|^2)`, orthogonal Gaussian ω, drawn once and saved.

    Args:
        num_features (int, optional): Number r of features. Defaults to the usual d ln d of a head's d channels.
    """

    takes_mask = True

    def __init__(self, site: Site, num_features: Optional[int] = None) -> None:
        super().__init__(site)
        head_dims = site.dims // site.heads
        features = num_features or max(1, int(head_dims * math.log(head_dims)))
        self.register_buffer('features', orthogonal_gaussian(features, head_dims))

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        return performer_product(q, k, v, self.features, mask)


@at_least_float32
def performer_product(q: Tensor, k: Tensor, v: Tensor, features: Tensor, mask: Optional[Tensor] = None) -> Tensor:
    """Attention (B, h, n, c) of (B, h, n, d), (B, h, m, d), (B, h, m, c), features (r, d) and a key mask (B, m)."""
    q, k = (t * t.size(-1) ** -0.25 for t in (q, k))
    directions = features.to(q.dtype).transpose(0, 1)
    log_q, log_k = (t @ directions - t.square().sum(-1, keepdim=True) / 2 for t in (q, k))
    if mask is not None:
        log_k = log_k.masked_fill(~mask[:, None, :, None], float('-inf'))
    # Subtracting maxima keeps the exponentials in range; these factors cancel in the quotient.
    phi_q = (log_q - log_q.amax(-1, keepdim=True)).exp()
    phi_k = (log_k - log_k.amax((-2, -1), keepdim=True)).exp()
    return weighted_mean(phi_q, phi_k, v, torch.finfo(phi_q.dtype).tiny)


def orthogonal_gaussian(features: int, dims: int) -> Tensor:
    """Vectors of shape (features, dims), orthogonal in groups of ``dims``, with norms of Gaussian vectors."""
    q, r = torch.linalg.qr(torch.randn(-(-features // dims), dims, dims))
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # without it, some directions would be more likely
    return q.transpose(-2, -1).flatten(0, 1)[:features] * torch.randn(features, dims).norm(dim=1, keepdim=True)
