"""SOFT's attention in the arithmetic of the published networks: all matrices held whole."""
from functools import partial

from torch import Tensor

from mmsoft.attention import Site, SOFTAttention
from mmsoft.ops import gaussian_kernel, newton_inverse
from mmsoft.ops.soft import soft_alpha, soft_norm_alpha
from mmsoft.registry import MODELS


@MODELS.register_module()
class PublishedSOFTAttention(SOFTAttention):
    """Twenty Newton steps on the whole inverse, then ``(Pᵀ · V) · (P · v)``.

    Args:
        site (Site): The place it is made for.
        norm (bool): SOFT-Norm instead of SOFT.
    """

    def __init__(self, site: Site, norm: bool = True) -> None:
        super().__init__(site, norm)
        self.product = partial(_attend, norm=norm)


def _attend(q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int, inverse: str, norm: bool) -> Tensor:
    """(B, h, n, d), (B, h, m, d) and (B, h, n, c) to (B, h, n, c)."""
    p, a = gaussian_kernel(bottleneck, q), gaussian_kernel(bottleneck, ridge=0. if norm else 0.01)
    if norm:
        rows = a.sum(-1, keepdim=True)
        scale = rows.rsqrt()
        whole = scale * newton_inverse(a, soft_norm_alpha(a, rows), iterations) * scale.transpose(-2, -1)
    else:
        whole = newton_inverse(a, soft_alpha(a, 0.01), iterations)
    return p.transpose(-2, -1) @ whole @ (p @ v)
