"""Nyströmformer: softmax attention by the Nyström method."""

from typing import Optional

import torch.nn.functional as F
from torch import Tensor

from mmsoft.layers.maps import HW, to_map, to_tokens
from mmsoft.ops.numerics import at_least_float32
from mmsoft.registry import MODELS

from .base import MultiheadAttention, Site


@MODELS.register_module()
class NystromformerAttention(MultiheadAttention):
    r""":math:`\rho(q \tilde k^\top) \rho(\tilde q \tilde k^\top)^+ \rho(\tilde q k^\top) v` (2102.03902, Eq. 13).

    ρ is the softmax over rows. Bottleneck tokens are means of windows of the map, as in SOFT's comparison (2110.11945,
    Sec. 4.2); windows at the right and bottom are smaller if the ratio does not divide the map. The pseudoinverse takes
    ``iterations`` steps, six in the original. Class tokens attend and are attended to, but are in no window.
    Convolutional projections of an architecture are not used.
    """

    def __init__(self, site: Site, iterations: int = 6) -> None:
        super().__init__(site._replace(project=None))
        self.ratio, self.iterations = site.ratio, iterations

    def attend(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None) -> Tensor:
        q, k, v = self.split_heads(x, hw)
        q, k = (t * q.size(-1) ** -0.25 for t in (q, k))
        return self.merge_heads(nystrom_product(q, k, v, *(self._bottleneck(t, hw) for t in (q, k)), self.iterations))

    def _bottleneck(self, tokens: Tensor, hw: HW) -> Tensor:
        tokens = tokens[:, :, tokens.size(2) - hw[0] * hw[1] :].flatten(0, 1)
        means = F.avg_pool2d(to_map(tokens, hw), self.ratio, ceil_mode=True)
        return to_tokens(means).unflatten(0, (-1, self.num_heads))


@at_least_float32
def nystrom_product(q: Tensor, k: Tensor, v: Tensor, few_q: Tensor, few_k: Tensor, iterations: int) -> Tensor:
    """Attention (B, h, n, c) of scaled q, k (B, h, n, d), v (B, h, n, c), and scaled few_q, few_k (B, h, m, d)."""
    kernel = (few_q @ few_k.transpose(-2, -1)).softmax(-1)
    values = (few_q @ k.transpose(-2, -1)).softmax(-1) @ v
    return (q @ few_k.transpose(-2, -1)).softmax(-1) @ (pseudoinverse(kernel, iterations) @ values)


def pseudoinverse(matrix: Tensor, iterations: int = 6) -> Tensor:
    """Iteration of 2102.03902, Eq. 11, with a starting value for each matrix of (..., m, m) separately."""
    rows, columns = (matrix.abs().sum(dim).amax(-1)[..., None, None] for dim in (-1, -2))
    inverse = matrix.transpose(-2, -1) / (rows * columns)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = 0.25 * (13 * inverse - inverse @ (15 * product - product @ (7 * product - product @ product)))
    return inverse
