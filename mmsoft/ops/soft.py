"""SOFT's product, Pᵀ · inv(A) · P · v with a Gaussian kernel, of which P (m, n) is never held: functions of tensors."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .gaussian import gaussian_kernel, gaussian_product
from .inverse import inverse_product
from .numerics import at_least_float32, exact_product

RIDGE = 0.01


@at_least_float32
def soft_attention(q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int = 20) -> Tensor:
    r"""SOFT, :math:`P^\top \, (A + 0.01 I)^{-1} P \, v` (2110.11945, Eq. 9, with the published code's ridge).

    Args:
        q (Tensor): Queries, which are also the keys, shape (B, h, n, d).
        bottleneck (Tensor): Bottleneck tokens, shape (B, h, m, d).
        v (Tensor): Values, shape (B, h, n, c).
        iterations (int): Newton–Raphson steps. Defaults to 20.

    Returns:
        Tensor: Shape (B, h, n, c), dtype of ``q``. Computed in float32 at least.
    """
    matrix = gaussian_kernel(bottleneck, ridge=RIDGE)
    alpha = soft_alpha(matrix.detach(), RIDGE)
    y = gaussian_product(bottleneck, q, v)
    z = inverse_product(matrix, y, alpha, iterations)
    return gaussian_product(q, bottleneck, z)


@at_least_float32
def soft_norm_attention(q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int = 20) -> Tensor:
    r"""SOFT-Norm, :math:`P^\top D^{-\frac12} A^{-1} D^{-\frac12} P \, v` with D the row sums of A (2207.03341, Eq. 25).

    Arguments and result are those of :func:`soft_attention`.
    """
    kernel = gaussian_kernel(bottleneck)
    row_sums = kernel.sum(-1, keepdim=True)
    scale = row_sums.rsqrt()
    y = scale * gaussian_product(bottleneck, q, v)
    alpha = soft_norm_alpha(kernel.detach(), row_sums.detach())
    z = scale * inverse_product(kernel, y, alpha, iterations)
    return gaussian_product(q, bottleneck, z)


def soft_alpha(matrix: Tensor, ridge: float = 0.0) -> Tensor:
    """Starting scale of SOFT's iteration, ``0.9 · 2 / ‖A‖₁²``, for ``A + ridge · I`` of (..., m, m): (..., 1, 1)."""
    return 1.8 / (matrix.sum(-1, keepdim=True).amax(-2, keepdim=True) - ridge).square()


def soft_norm_alpha(kernel: Tensor, row_sums: Tensor) -> Tensor:
    r"""Starting scale of SOFT-Norm's iteration for matrices A of shape (B, h, m, m) and their row sums: (B, 1, 1, 1).

    ``2 / ‖A‖₁²``, halved at most ten times while ``‖I - α A²‖₁ > 1.01``. Both norms are taken over the heads of one
    image, by the published network over the batch. A has no negative entry, so row sums and diagonal of A² suffice.
    """
    square_diagonal = torch.linalg.vector_norm(kernel, dim=-1, keepdim=True).square()
    return norm_alpha(row_sums, exact_product(kernel, row_sums), square_diagonal)


def norm_alpha(row_sums: Tensor, square_row_sums: Tensor, square_diagonal: Tensor) -> Tensor:
    """:func:`soft_norm_alpha` from the row sums of A, the row sums of A² and its diagonal, each (B, h, m, 1)."""
    alpha = 2 / row_sums.amax((1, 2, 3), keepdim=True).square()
    candidates = alpha * 0.5 ** torch.arange(10, dtype=alpha.dtype, device=alpha.device)
    diagonal = candidates * square_diagonal
    norm = ((1 - diagonal).abs() + candidates * square_row_sums - diagonal).amax((1, 2))
    halvings = F.pad((norm <= 1.01).int(), (0, 1), value=1).argmax(1).view(-1, 1, 1, 1)
    return alpha * 0.5**halvings
