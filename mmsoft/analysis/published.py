"""SOFT's attention in the arithmetic of the published networks: all matrices held whole."""
from functools import partial

import torch
from torch import Tensor

from mmsoft.attention import Site, SOFTAttention
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
    a, p = _kernel(bottleneck, bottleneck), _kernel(bottleneck, q)
    eye = torch.eye(a.size(-1), device=a.device)
    if norm:
        alpha, scale = _alpha(a, eye), a.sum(-1, keepdim=True).rsqrt()
        inverse = scale * _newton(a, alpha, iterations) * scale.transpose(-2, -1)
    else:
        alpha = 1.8 / a.sum(-1).amax(-1)[..., None, None]**2
        inverse = _newton(a + 0.01 * eye, alpha, iterations)
    return p.transpose(-2, -1) @ inverse @ (p @ v)


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    distances = x.square().sum(-1).unsqueeze(-1) + y.square().sum(-1).unsqueeze(-2) - 2 * x @ y.transpose(-2, -1)
    return (-0.5 * distances).exp()


def _newton(matrix: Tensor, alpha: Tensor, iterations: int) -> Tensor:
    inverse = alpha * matrix
    for _ in range(iterations):
        inverse = 2 * inverse - inverse @ matrix @ inverse
    return inverse


def _alpha(a: Tensor, eye: Tensor) -> Tensor:
    alpha = 2 / a.sum(-1).amax((-2, -1))[..., None, None, None]**2
    for _ in range(10):
        rest = (eye - alpha * a @ a).abs().sum(-1).amax((-2, -1))[..., None, None, None]
        alpha = torch.where(rest > 1.01, alpha / 2, alpha)
    return alpha
