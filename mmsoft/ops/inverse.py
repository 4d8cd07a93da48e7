r"""SOFT's inverse by Newton–Raphson steps, and its product with a thin matrix.

The iteration acts on each eigenvalue λ of the symmetric M separately. T steps turn λ into
:math:`f(\lambda) = (1 - (1 - \alpha\lambda^2)^{2^T}) / \lambda`, which is :math:`1/\lambda` where the iteration has
converged, and goes to zero with :math:`\lambda` where it has not. Networks only need f(M) times a thin matrix. For few
tokens, the steps are iterated; for many, f is a polynomial of one resolvent (``docs/derivations.md``).
"""

import functools
import math
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

from .numerics import add_product, as_operator, at_least_float32, exact_product, is_compiling, is_exporting, no_autocast

_FEW_TOKENS = 96  # up to this number, the iteration's few small products cost less than the resolvent's many thin ones
_MANY_STEPS = {torch.float32: 20, torch.float64: 49}  # with more, an αλ² that is rounded up beyond 2 diverges
_FEW_STEPS = 16  # with fewer, f falls to zero over a width that needs more terms of the series
_SHIFT = 2.5  # c, in the middle of a wide minimum of the error; the condition number of W is at most 1448 / c + 1
_TERMS = {torch.float32: 28, torch.float64: 64}  # the errors are at most 3.2e-6 and 2e-12 of f's maximum
_BLOCK = 160  # matrices up to this size are inverted by their Cholesky factors, larger ones by products of blocks


@at_least_float32
def newton_inverse(matrix: Tensor, alpha: Tensor, iterations: int = 20) -> Tensor:
    r"""Newton–Raphson inverse, :math:`V \leftarrow 2V - V M V` from :math:`V = \alpha M` (2110.11945, Alg. 2).

    M, of shape (..., m, m), is symmetric and positive; α is broadcastable to (..., 1, 1). The result has the shape of M
    and approximates its inverse if there are enough steps.
    """
    shape = matrix.shape
    inverse, matrix = (t.reshape(-1, *shape[-2:]) for t in (alpha * matrix, matrix))
    for _ in range(iterations):
        inverse = add_product(inverse, exact_product(inverse, matrix), inverse, beta=2, alpha=-1)
    return inverse.reshape(shape)


@at_least_float32
def inverse_product(matrix: Tensor, y: Tensor, alpha: Tensor, iterations: int = 20) -> Tensor:
    r"""Newton–Raphson inverse times a thin matrix, :math:`V y`, differentiated as the exact inverse.

    Gradients are :math:`\partial y = V G` and :math:`\partial M = -V G (V y)^\top` (2207.03341, Eq. 16, expanded). It
    iterates in exports, below 16 steps, and up to 96 tokens and 20 steps (float64: 49); else it uses a resolvent.

    Args:
        matrix (Tensor): Symmetric positive semidefinite matrices M of shape (..., m, m).
        y (Tensor): Shape (..., m, c), same leading dimensions.
        alpha (Tensor): Constant scale of the starting value, broadcastable to (..., 1, 1), at most ``2 / ‖M‖₁²``.
        iterations (int): Number of steps. Defaults to 20.

    Returns:
        Tensor: Shape (..., m, c), dtype of ``matrix``; NaN where M is not finite. Computed in float32 at least.
    """
    m, lead = matrix.size(-1), matrix.shape[:-2]
    groups = math.prod(lead)
    alpha = alpha.detach().expand(*lead, 1, 1).reshape(groups, 1, 1)
    iterations = min(iterations, 100)  # more steps change no digit, and 2**steps overflows
    matrix, columns = matrix.reshape(groups, m, m), y.reshape(groups, m, y.size(-1))
    if not is_exporting():
        return _InverseProduct.apply(matrix, columns, alpha, iterations).reshape(y.shape)
    fixed = matrix.detach()
    inverse = newton_inverse(fixed, alpha, iterations)
    out = exact_product(inverse, columns)
    if matrix.requires_grad:  # subtracts zero, with the gradient of the exact inverse and not of the iteration
        out = out - exact_product(inverse, exact_product(matrix - fixed, out))
    return out.reshape(y.shape)


class _InverseProduct(torch.autograd.Function):
    """Arguments: (g, m, m), (g, m, c), (g, 1, 1). Both passes use the same factors; compiled, each is one operator."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, y: Tensor, alpha: Tensor, iterations: int) -> Tensor:
        factors = () if is_compiling() else _factorize(matrix, alpha, iterations)
        out = _multiply(y, iterations, *factors) if factors else compiled_product(y, iterations, matrix, alpha)
        ctx.iterations = iterations
        ctx.save_for_backward(matrix, alpha, out, *factors)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        matrix, alpha, out, *factors = ctx.saved_tensors
        with no_autocast(grad.device.type):
            if not factors:
                dy = compiled_product(grad, ctx.iterations, matrix, alpha)
            elif torch.is_grad_enabled():  # for second derivatives
                dy = _InverseProduct.apply(matrix, grad, alpha, ctx.iterations)
            else:
                dy = _multiply(grad, ctx.iterations, *factors)
            dmatrix = exact_product(-dy, out.transpose(1, 2)) if ctx.needs_input_grad[0] else None
        return dmatrix, dy, None, None


def _in_one_go(y: Tensor, iterations: int, matrix: Tensor, alpha: Tensor) -> Tensor:
    return _multiply(y, iterations, *_factorize(matrix, alpha, iterations))


# Tens of small products would take a compiler minutes.
compiled_product = as_operator('inverse_product', _in_one_go, lambda y, *_: y.new_empty(y.shape))


def _factorize(matrix: Tensor, alpha: Tensor, iterations: int) -> tuple[Tensor, ...]:
    """The inverse (g, m, m), or the factors of the resolvent. Only shapes decide, so no device is synchronised."""
    if iterations < _FEW_STEPS or (matrix.size(-1) <= _FEW_TOKENS and iterations <= _MANY_STEPS[matrix.dtype]):
        return (newton_inverse(matrix, alpha, iterations),)
    sums = matrix.sum(-1, keepdim=True)
    scale = (alpha * 2.0**iterations).sqrt()
    # Tokens of an image resemble each other, so one eigenvalue of M exceeds the others by orders of magnitude; its
    # vector is nearly the row sums. H M H, H = I - u uᵀ, isolates it in one entry, where it does not swamp the others.
    axis = _reflection(sums)
    # H M H = H R H + mean H1 (H1)ᵀ, H R H = R - u wᵀ - w uᵀ. R = M - mean has digits that the mean would swamp.
    mean = sums.mean(1, keepdim=True) / matrix.size(-1)
    rest, ones = matrix - mean, _reflect(torch.ones_like(sums), axis)
    w = exact_product(rest, axis)
    w = w - 0.5 * (axis * w).sum(1, keepdim=True) * axis
    left, right = torch.cat([axis, w, -mean * ones], 2), torch.cat([w, axis, ones], 2)
    shifted = add_product(rest, left, right.transpose(1, 2), alpha=-1).mul_(scale)
    shifted.diagonal(dim1=1, dim2=2).add_(_SHIFT)
    # At αλ² = 2, f is 0: the iteration cancels 1/λ entirely. As α ≤ 2 / ‖M‖₁², λ must then be the sum of every row. Its
    # eigenvector is taken to be constant, or any vector if M is diagonal.
    border = (alpha * sums.amin(1, keepdim=True).square() - 1).clamp(min=0).pow(2.0**iterations)
    beside = sums - matrix.diagonal(dim1=1, dim2=2)[..., None]
    diagonal = beside.amax(1, keepdim=True) <= 8 * torch.finfo(matrix.dtype).eps
    return invert_(shifted), axis, scale, border, diagonal


def _multiply(y: Tensor, iterations: int, first: Tensor, *others: Tensor) -> Tensor:
    """f(M) y from the factors of :func:`_factorize`.

    With s = α 2^T, f(λ) = √s F(√s λ). F(x) is μ times a Chebyshev series in μ = 1 / (x + c), so f(M) y takes one
    product with the resolvent W = (√s M + c)⁻¹ per term (van den Eshof and Hochbruck, SIAM J. Sci. Comput. 2006).
    """
    if not others:
        return exact_product(first, y)
    resolvent, (axis, scale, border, diagonal) = first, others
    y = exact_product(resolvent, _reflect(scale * y, axis))
    stretch, center, coefficients = _series(iterations, _TERMS[y.dtype])
    before, term = y, add_product(y, resolvent, y, beta=-center, alpha=stretch)
    total = coefficients[0] * before + coefficients[1] * term
    for coefficient in coefficients[2:]:  # the recurrence of Chebyshev's polynomials
        shifted = before.add(term, alpha=2 * center)
        before, term = term, add_product(shifted, resolvent, term, beta=-1, alpha=2 * stretch)
        total.add_(term, alpha=coefficient)
    z = _reflect(total, axis)
    return z - border * torch.where(diagonal, z, z.mean(1, keepdim=True))


@functools.cache
def _series(iterations: int, terms: int) -> tuple[float, float, list[float]]:
    """Chebyshev series of F(x) / μ, exact at both ends: scale and offset that map μ to [-1, 1], and coefficients."""
    steps = 2.0**iterations
    low, high = 1 / (math.sqrt(2 * steps) + _SHIFT), 1 / _SHIFT  # of μ, given that αλ² ≤ 2
    nodes = np.cos(np.linspace(0, np.pi, terms))
    mu = (high + low + (high - low) * nodes) / 2
    x = np.maximum(1 / mu - _SHIFT, 1e-30)  # x is 0 at one end, where F is 0
    filtered = -np.expm1(steps * np.log1p(-np.minimum(x * x / steps, 1 - 1e-9))) / x
    coefficients = np.polynomial.chebyshev.chebfit(nodes, filtered / mu, terms - 1).tolist()
    return 2 / (high - low), (high + low) / (high - low), coefficients


def invert_(matrix: Tensor) -> Tensor:
    """Inverts symmetric positive definite matrices (g, m, m) in place, by blocks; NaN for other matrices."""
    _, _, m = matrix.shape
    if m <= _BLOCK:
        factor, info = torch.linalg.cholesky_ex(matrix)
        factor = factor.masked_fill_((info != 0).view(-1, 1, 1), math.nan)
        unit = torch.eye(m, dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
        root = torch.linalg.solve_triangular(factor, unit, upper=False)
        return matrix.copy_(exact_product(root.transpose(1, 2), root))
    half = m // 2
    top, bottom, low = matrix[:, :half, :half], matrix[:, half:, half:], matrix[:, half:, :half]
    ratio = exact_product(low, invert_(top))
    invert_(bottom.sub_(exact_product(ratio, low.transpose(1, 2))))
    low.copy_(exact_product(bottom, ratio)).neg_()
    top.sub_(exact_product(ratio.transpose(1, 2), low))
    matrix[:, :half, half:] = low.transpose(1, 2)
    return matrix


def _reflection(vector: Tensor) -> Tensor:
    """The u (g, m, 1) of the Householder reflection H = I - u uᵀ of ``vector`` (g, m, 1) to the first axis."""
    unit = vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True).clamp(min=torch.finfo(vector.dtype).tiny)
    first = unit[:, :1]
    return torch.cat([torch.where(first < 0, first - 1, first + 1), unit[:, 1:]], 1) * (1 + first.abs()).rsqrt()


def _reflect(x: Tensor, axis: Tensor) -> Tensor:
    """``H x`` with u = ``axis``."""
    return torch.addcmul(x, axis, (axis * x).sum(1, keepdim=True), value=-1)
