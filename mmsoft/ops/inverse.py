r"""The Newton–Raphson inverse of SOFT, its closed form, and its product with a thin matrix.

The iteration :math:`V \leftarrow 2V - V M V` from :math:`V_0 = \alpha M` (SOFT, Sec. 3.3) acts on each eigenvalue of
the symmetric M alone, so T steps of it have a closed form, the spectral filter
:math:`f(\lambda) = (1 - (1 - \alpha\lambda^2)^{2^T}) / \lambda`. Where the iteration has converged, this is
:math:`1/\lambda` and a symmetric solve gives the same; where it has not, f goes to zero with :math:`\lambda` and keeps
the result bounded, which the trained networks rely on.
"""
from functools import partial
from typing import Callable, Dict

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .krylov import krylov_product
from .precision import no_autocast

Apply = Callable[[Tensor], Tensor]

# (1 - αλ²)^(2^T) < 2e-8 at αλ²·2^T = 18: below float32's resolution beside 1.
_CONVERGED = 18.0


def newton_inverse(matrix: Tensor, alpha: Tensor, iterations: int = 20) -> Tensor:
    """Newton–Raphson inverse, the iteration as the paper writes it (SOFT, Alg. 1).

    Args:
        matrix (Tensor): Symmetric positive matrices M of shape (..., m, m).
        alpha (Tensor): Scale of the starting value, broadcastable to (..., 1, 1).
        iterations (int): Number of steps T. Defaults to 20.

    Returns:
        Tensor: Shape (..., m, m), close to the inverse where T steps suffice.
    """
    inverse = alpha * matrix
    for _ in range(iterations):
        inverse = 2 * inverse - inverse @ matrix @ inverse
    return inverse


def newton_filter(eigenvalues: Tensor, alpha: Tensor, iterations: int = 20) -> Tensor:
    """What ``iterations`` Newton–Raphson steps make of an eigenvalue: ``(1 - (1 - alpha λ²)^(2^iterations)) / λ``.

    Args:
        eigenvalues (Tensor): Eigenvalues λ, any shape.
        alpha (Tensor): Scale of the starting value, broadcastable to ``eigenvalues``.
        iterations (int): Number of steps. Defaults to 20.

    Returns:
        Tensor: Same shape and dtype as ``eigenvalues``; 0 at λ = 0.
    """
    steps = 2.0**iterations
    x = alpha * eigenvalues.square()
    log = torch.where(x > 0.5, (1 - x).abs().log(), torch.log1p(-x.clamp(max=0.5)))
    safe = torch.where(eigenvalues == 0, torch.ones_like(eigenvalues), eigenvalues)
    return torch.where(eigenvalues == 0, eigenvalues, -torch.expm1(steps * log) / safe)


def inverse_product(matrix: Tensor, y: Tensor, alpha: Tensor, iterations: int = 20, method: str = 'auto') -> Tensor:
    r"""Newton–Raphson inverse times a thin matrix, :math:`V y`, differentiated as the exact inverse.

    The gradient is :math:`\partial y = V G` and :math:`\partial M = -V G (V y)^\top` (SOFT, Eq. 16, multiplied out),
    so neither pass forms more than the chosen factorisation of M.

    Args:
        matrix (Tensor): Symmetric positive matrices M of shape (..., m, m), float32 or float64.
        y (Tensor): Shape (..., m, c), same leading dimensions.
        alpha (Tensor): Scale of the starting value, broadcastable to (..., 1, 1). Not differentiated.
        iterations (int): Number of steps. Defaults to 20.
        method (str): One of :data:`INVERSE_METHODS`: ``'newton'`` iterates, ``'closed_form'`` filters the
            eigenvalues, ``'solve'`` solves where the iteration has converged and filters elsewhere, ``'krylov'``
            filters in a small Krylov space and solves where that does not suffice, ``'auto'`` chooses by size and
            device.

    Returns:
        Tensor: Shape (..., m, c).

    Raises:
        ValueError: If ``method`` is unknown.
    """
    if method not in INVERSE_METHODS:
        raise ValueError(f'unknown inverse method {method!r}; choose one of {", ".join(INVERSE_METHODS)}')
    m = matrix.size(-1)
    alpha = alpha.detach().expand(*matrix.shape[:-2], 1, 1).reshape(-1, 1, 1)
    if method == 'auto':
        method = _choose(matrix, learns=torch.is_grad_enabled() and (matrix.requires_grad or y.requires_grad))
    out = _InverseProduct.apply(
        matrix.reshape(-1, m, m), y.reshape(-1, m, y.size(-1)), alpha, iterations, FACTORIZATIONS[method])
    return out.reshape(y.shape)


class _InverseProduct(torch.autograd.Function):
    """:func:`inverse_product` on (g, m, m), (g, m, c) and (g, 1, 1)."""

    @staticmethod
    def forward(ctx, matrix: Tensor, y: Tensor, alpha: Tensor, iterations: int, factorize: Callable) -> Tensor:
        ctx.apply_inverse = factorize(matrix, alpha, iterations)
        out = ctx.apply_inverse(y)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        out, = ctx.saved_tensors
        with no_autocast(grad.device.type):
            dy = ctx.apply_inverse(grad)
            return -dy @ out.transpose(1, 2), dy, None, None, None


def _iterate(matrix: Tensor, alpha: Tensor, iterations: int) -> Apply:
    inverse = newton_inverse(matrix, alpha, iterations)
    return lambda y: inverse @ y


def _filter(matrix: Tensor, alpha: Tensor, iterations: int) -> Apply:
    eigenvalues, vectors = torch.linalg.eigh(matrix.double())
    gain = newton_filter(eigenvalues, alpha.squeeze(-1), iterations).unsqueeze(-1)
    return lambda y: (vectors @ (gain * (vectors.mT @ y.double()))).to(y.dtype)


def _solve(matrix: Tensor, alpha: Tensor, iterations: int) -> Apply:
    """Cholesky solve where T steps reach the inverse on every eigenvalue, the filter elsewhere."""
    converged = _has_converged(matrix, alpha, iterations)
    factor = torch.linalg.cholesky(matrix[converged])
    return _split(converged, lambda y: torch.cholesky_solve(y, factor), _filter, matrix, alpha, iterations)


def _krylov(matrix: Tensor, alpha: Tensor, iterations: int) -> Apply:
    """A few Krylov steps, which is all that most kernel matrices need, and a factorisation of the others."""
    wide, gain = matrix.double(), partial(newton_filter, alpha=alpha.squeeze(-1).double(), iterations=iterations)

    def apply(y: Tensor) -> Tensor:
        if y.size(-1) * 4 > y.size(-2):
            return _solve(matrix, alpha, iterations)(y)
        out, converged = krylov_product(wide, y.double(), gain)
        return _split(converged, lambda _: out[converged].to(y.dtype), _solve, matrix, alpha, iterations)(y)

    return apply


def _split(chosen: Tensor, apply: Apply, otherwise: Callable, matrix: Tensor, alpha: Tensor, iterations: int) -> Apply:
    """``apply`` for the chosen matrices, and for the others what ``otherwise`` makes of them."""
    if chosen.all():
        return apply
    other = otherwise(matrix[~chosen], alpha[~chosen], iterations)

    def both(y: Tensor) -> Tensor:
        out = torch.empty_like(y)
        out[chosen], out[~chosen] = apply(y[chosen]), other(y[~chosen])
        return out

    return both


def _has_converged(matrix: Tensor, alpha: Tensor, iterations: int) -> Tensor:
    """Whether T steps reach the inverse on every eigenvalue: (g,) of bool.

    The smallest eigenvalue exceeds the least that converges if M less that least on the diagonal still has a Cholesky
    factorisation. The largest, bounded by the largest row sum, must stay clear of αλ² = 2, where nothing converges.
    """
    least = (_CONVERGED / (2.0**iterations * alpha)).sqrt()
    most = 2 - max(0.01, _CONVERGED / 2.0**iterations)
    info = torch.linalg.cholesky_ex(matrix - least * torch.eye(matrix.size(-1)).to(matrix)).info
    return (info == 0) & (alpha.flatten() * matrix.sum(-1).amax(-1).square() < most)


FACTORIZATIONS: Dict[str, Callable] = dict(newton=_iterate, closed_form=_filter, solve=_solve, krylov=_krylov)
INVERSE_METHODS = ('auto', *FACTORIZATIONS)


def _choose(matrix: Tensor, learns: bool) -> str:
    """By measurement on a CPU: the iteration's few small products below 96 tokens, Krylov steps for many.

    A factorisation serves the backward pass as well, which Krylov steps have to repeat, so that they pay later. On
    other devices products are cheap and factorisations are not.
    """
    m = matrix.size(-1)
    if matrix.device.type != 'cpu' or m <= 96:
        return 'newton'
    return 'krylov' if m >= (384 if learns else 256) else 'closed_form'
