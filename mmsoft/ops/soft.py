"""SOFT's product, Pᵀ · inv(A) · P · v with a Gaussian kernel. P (m, n) is held for some heads or for none."""

from typing import Union

import torch
import torch.nn.functional as F
from torch import Tensor

from .gaussian import gaussian_kernel, gaussian_product
from .inverse import inverse_product
from .numerics import at_a_time, at_least_float32, exact_product, is_compiling, is_exporting, is_recording

RIDGE = 0.01
# Elements of P, 30 MB in float32: without gradients, a CPU computes P of as many heads once for both products.
HELD_ELEMENTS = 15 * 2**19


@at_least_float32
def soft_attention(q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int = 20) -> Tensor:
    r"""SOFT, :math:`P^\top \, (A + 0.01 I)^{-1} P \, v` (2110.11945, Eq. 9, with the published code's ridge).

    Args:
        q (Tensor): Queries, which are also the keys, shape (B, h, n, d).
        bottleneck (Tensor): Bottleneck tokens, shape (B, h, m, d).
        v (Tensor): Values, shape (B, h, n, c), or (B, 1, n, c) shared by all heads.
        iterations (int): Newton–Raphson steps. Defaults to 20.

    Returns:
        Tensor: Shape (B, h, n, c), dtype of ``q``. Computed in float32 at least.
    """
    return attend(q, bottleneck, v, False, iterations)


@at_least_float32
def soft_norm_attention(q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int = 20) -> Tensor:
    r"""SOFT-Norm, :math:`P^\top D^{-\frac12} A^{-1} D^{-\frac12} P \, v` with D the row sums of A (2207.03341, Eq. 25).

    Arguments and result are those of :func:`soft_attention`.
    """
    return attend(q, bottleneck, v, True, iterations)


def attend(q: Tensor, tokens: Tensor, v: Tensor, norm: bool, iterations: int, gain: Union[float, Tensor] = 1) -> Tensor:
    """SOFT, or SOFT-Norm with ``norm``, times a gain: a number, or one per head (B, h, 1, 1)."""
    if not is_recording() and tokens.size(2) < 4 and q.dtype == torch.float32 and q.device.type in ('cpu', 'cuda'):
        # Two tokens have equal row sums. At αλ² = 2, the iteration then magnifies a rounding error a million times.
        return attend(q.double(), tokens.double(), v.double(), norm, iterations, gain).float()
    matrix = gaussian_kernel(tokens, ridge=0 if norm else RIDGE)
    row_sums = matrix.sum(-1, keepdim=True)
    alpha = soft_norm_alpha(matrix.detach(), row_sums.detach()) if norm else soft_alpha(row_sums.detach() - RIDGE)
    scale = row_sums.rsqrt() if norm else torch.ones_like(alpha)
    return _product(iterations, q, tokens, v, matrix, alpha.expand(-1, q.size(1), -1, -1), scale, scale * gain)


def _product(iterations: int, *tensors: Tensor) -> Tensor:
    """Pᵀ · after · inv(A) · before · P · v of tensors that have heads as their second dimension."""
    q, tokens, v, matrix, alpha, before, after = tensors
    holds = is_exporting()  # P: of all heads in an exported graph, of some at a time on a CPU without gradients
    if q.device.type == 'cpu' and not (is_recording() or is_compiling() or torch.is_grad_enabled()):
        heads = at_a_time(HELD_ELEMENTS, q.size(0) * q.size(2) * tokens.size(2), q.size(1))
        if 0 < heads < q.size(1):
            groups = zip(*(t.expand(-1, q.size(1), -1, -1).split(heads, 1) for t in tensors))  # heads may share values
            return torch.cat([_product(iterations, *group) for group in groups], 1)
        holds = heads > 0
    transposed = gaussian_kernel(q, tokens) if holds else None  # Pᵀ
    y = gaussian_product(tokens, q, v) if transposed is None else exact_product(transposed.transpose(2, 3), v)
    z = after * inverse_product(matrix, before * y, alpha, iterations)
    return gaussian_product(q, tokens, z) if transposed is None else exact_product(transposed, z)


def soft_alpha(row_sums: Tensor) -> Tensor:
    """Starting scale of SOFT's iteration, ``0.9 · 2 / ‖A‖₁²``, from the row sums of A (..., m, 1): (..., 1, 1)."""
    return 1.8 / row_sums.amax(-2, keepdim=True).square()


def soft_norm_alpha(kernel: Tensor, row_sums: Tensor) -> Tensor:
    r"""Starting scale of SOFT-Norm's iteration for matrices A of shape (B, h, m, m) and their row sums: (B, 1, 1, 1).

    ``2 / ‖A‖₁²``, halved at most ten times while ``‖I - α A²‖₁ > 1.01``. Both norms are maxima over the heads of an
    image (published: of the batch). A has no negative entry, so row sums and diagonal of A² suffice.
    """
    square_diagonal = torch.linalg.vector_norm(kernel, dim=-1, keepdim=True).square()
    return norm_alpha(row_sums, exact_product(kernel, row_sums), square_diagonal)


def norm_alpha(row_sums: Tensor, square_row_sums: Tensor, square_diagonal: Tensor) -> Tensor:
    """:func:`soft_norm_alpha` from the row sums of A, and row sums s and diagonal d of A², each (B, h, m, 1)."""
    alpha = 2 / row_sums.amax((1, 2, 3), keepdim=True).square()
    candidates = alpha * 0.5 ** torch.arange(10, dtype=alpha.dtype, device=alpha.device)
    below = 1 + candidates * (square_row_sums - 2 * square_diagonal).amax((1, 2, 3), keepdim=True)
    norm = torch.maximum(below, candidates * square_row_sums.amax((1, 2, 3), keepdim=True) - 1)  # |1 - αd| + α(s - d)
    halvings = F.pad((norm <= 1.01).int(), (0, 1), value=1).argmax(3, keepdim=True)
    return alpha * 0.5 ** halvings.to(alpha.dtype)
