"""SOFT's attention: Pᵀ · inv(A) · P · v with a Gaussian kernel, streamed over the tokens."""
import torch
from torch import Tensor

from .gaussian import exp_product, fold_norms, gaussian_kernel
from .inverse import inverse_product
from .precision import at_least_float32


@at_least_float32
def soft_attention(q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int = 20, inverse: str = 'auto') -> Tensor:
    r"""SOFT, :math:`P^\top \, (A + 0.01 I)^{-1} P \, v` (NeurIPS 2021, Eq. 8).

    Args:
        q (Tensor): Queries, which are also the keys, shape (B, h, n, d).
        bottleneck (Tensor): Bottleneck tokens, shape (B, h, m, d).
        v (Tensor): Values, shape (B, h, n, c).
        iterations (int): Newton–Raphson steps. Defaults to 20.
        inverse (str): One of :data:`mmsoft.ops.INVERSE_METHODS`. Defaults to ``'auto'``.

    Returns:
        Tensor: Shape (B, h, n, c), dtype of ``q``. Computed in float32 at least.
    """
    kernel = gaussian_kernel(bottleneck)
    tokens, landmarks = fold_norms(q, bottleneck)
    y = exp_product(landmarks, tokens, v)
    z = inverse_product(_ridge(kernel), y, soft_alpha(kernel.detach()), iterations, inverse)
    return exp_product(tokens, landmarks, z)


@at_least_float32
def soft_norm_attention(q: Tensor,
                        bottleneck: Tensor,
                        v: Tensor,
                        iterations: int = 20,
                        inverse: str = 'auto') -> Tensor:
    r"""SOFT-Norm, :math:`P^\top D^{-\frac12} A^{-1} D^{-\frac12} P \, v` with D the row sums of A (IJCV 2024, Eq. 25).

    Arguments and result are those of :func:`soft_attention`.
    """
    kernel = gaussian_kernel(bottleneck)
    scale = kernel.sum(-1, keepdim=True).rsqrt()
    tokens, landmarks = fold_norms(q, bottleneck)
    y = scale * exp_product(landmarks, tokens, v)
    z = scale * inverse_product(kernel, y, soft_norm_alpha(kernel.detach()), iterations, inverse)
    return exp_product(tokens, landmarks, z)


def soft_alpha(kernel: Tensor) -> Tensor:
    """Starting scale of SOFT's iteration, ``0.9 · 2 / ‖A‖₁²`` for each matrix of (B, h, m, m): (B, h, 1, 1)."""
    return 1.8 / _row_sums(kernel).amax((-2, -1), keepdim=True).square()


def soft_norm_alpha(kernel: Tensor) -> Tensor:
    r"""Starting scale of SOFT-Norm's iteration for kernel matrices of shape (B, h, m, m): (B, 1, 1, 1).

    ``2 / ‖A‖₁²``, halved at most ten times while ``‖I - α A²‖₁ > 1.01``. Both norms are taken over the heads of one
    image: the published network takes them over the whole batch, where an image's result depends on its companions.
    A has no negative entry, so the norm needs only the row sums and the diagonal of A².
    """
    row_sums = _row_sums(kernel)
    square_row_sums, square_diagonal = kernel @ row_sums, kernel.square().sum(-1, keepdim=True)
    alpha = 2 / row_sums.amax((1, 2, 3), keepdim=True).square()
    candidates = alpha.unsqueeze(-1) * 0.5**torch.arange(11, dtype=kernel.dtype, device=kernel.device)
    diagonal = candidates * square_diagonal.unsqueeze(-1)
    norm = ((1 - diagonal).abs() + candidates * square_row_sums.unsqueeze(-1) - diagonal).amax((1, 2, 3))
    passes = (norm <= 1.01).int()
    passes[:, -1] = 1
    halvings = passes.argmax(1).view(-1, 1, 1, 1)
    return alpha * 0.5**halvings


def _row_sums(kernel: Tensor) -> Tensor:
    return kernel.sum(-1, keepdim=True)


def _ridge(kernel: Tensor, value: float = 0.01) -> Tensor:
    return kernel + value * torch.eye(kernel.size(-1), dtype=kernel.dtype, device=kernel.device)
