r"""Newton's filter of a positive matrix from one inversion and a fixed number of thin products.

With :math:`s = \alpha 2^T` the filter is :math:`f(\lambda) = \sqrt s \, F(\sqrt s \lambda)`, where
:math:`F(x) = (1 - (1 - x^2 2^{-T})^{2^T}) / x \approx (1 - e^{-x^2}) / x` no longer knows of the matrix. On the whole
spectrum, :math:`0 \le x \le \sqrt{2 \cdot 2^T}`, F is a short Chebyshev series in :math:`\mu = 1 / (x + c)`, which
maps the long tail of large eigenvalues to a neighbourhood of zero: a rational approximation with one repeated pole (van
den Eshof and Hochbruck, *Preconditioning Lanczos approximations to the matrix exponential*, SIAM J. Sci. Comput. 2006).
So :math:`f(M) \, y` takes the resolvent :math:`W = (\sqrt s M + c)^{-1}` and one product with W a term, whatever the
eigenvalues are: no test of convergence, no eigenvector, nothing that depends on the other matrices of a batch.

The tokens of an image resemble each other, and one eigenvalue, with a nearly constant vector, exceeds the others by
orders of magnitude. Its rounding would drown them, so M is first reflected to have that vector as its first axis.
"""
import functools
import math
from typing import Tuple

import torch
from torch import Tensor

from .numerics import add_product, add_product_, exact_product

# The pole is at x = -c: in the middle of a wide minimum of the error. W's condition is at most 1448 / c.
_SHIFT = 2.5
# Terms for a relative error of 3e-6 at worst in float32, and of 1e-12 in float64.
_TERMS = {torch.float32: 28, torch.float64: 64}
# Matrices up to this size are inverted by their Cholesky factors, larger ones by products of their blocks.
_BLOCK = 160
#: Least number of steps T. Fewer are cheaper as they are written, and fall to zero over a width that needs more terms.
LEAST_ITERATIONS = 16


def factorize(matrix: Tensor, alpha: Tensor, iterations: int) -> Tuple[Tensor, ...]:
    """What :func:`filter_product` needs to know of matrices (g, m, m) with starting scales (g, 1, 1)."""
    sums = matrix.sum(-1, keepdim=True)
    scale = (alpha * 2.0**iterations).sqrt()
    axis = _reflection(sums)
    shifted = _reflect_both_sides(matrix, sums, axis).mul_(scale)
    shifted.diagonal(dim1=1, dim2=2).add_(_SHIFT)
    return (invert_(shifted), axis, scale, *_border(matrix, sums, alpha, iterations))


def filter_product(factors: Tuple[Tensor, ...], y: Tensor, iterations: int) -> Tensor:
    """Newton's filter of the matrices in ``factors``, see :func:`factorize`, times ``y`` of shape (g, m, c)."""
    resolvent, axis, scale, border, alone = factors
    z = _series(resolvent, exact_product(resolvent, _reflect(scale * y, axis)), iterations)
    z = _reflect(z, axis)
    return z - border * torch.where(alone, z, z.mean(1, keepdim=True))


def invert_(matrix: Tensor) -> Tensor:
    """Inverts symmetric positive definite matrices (g, m, m) in place; NaN where they are not.

    It takes two thirds of the multiplications of one product of such matrices, and is itself made of products.
    """
    m = matrix.size(-1)
    if m <= _BLOCK:
        factor, info = torch.linalg.cholesky_ex(matrix)
        factor = factor.masked_fill_((info != 0).view(-1, 1, 1), math.nan)
        unit = torch.eye(m, dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
        root = torch.linalg.solve_triangular(factor, unit, upper=False)
        return matrix.copy_(exact_product(root.transpose(1, 2), root))
    half = m // 2
    top, bottom, low = matrix[:, :half, :half], matrix[:, half:, half:], matrix[:, half:, :half]
    ratio = exact_product(low, invert_(top))
    invert_(add_product_(bottom, ratio, low.transpose(1, 2), alpha=-1))
    torch.neg(exact_product(bottom, ratio), out=low)
    add_product_(top, ratio.transpose(1, 2), low, alpha=-1)
    matrix[:, :half, half:] = low.transpose(1, 2)
    return matrix


@functools.lru_cache(maxsize=None)
def chebyshev_coefficients(iterations: int, terms: int) -> Tuple[float, ...]:
    r"""Coefficients of :math:`F(x) / \mu` in Chebyshev polynomials of :math:`\mu`, exact at both ends of the interval.

    At x = 0 too, so that what the iteration maps to zero comes out as zero.
    """
    least, most = _interval(iterations)
    last = terms - 1
    angles = [j * math.pi / last for j in range(terms)]
    values = [_quotient((most + least + (most - least) * math.cos(angle)) / 2, iterations) for angle in angles]
    values[0], values[-1] = values[0] / 2, values[-1] / 2
    sums = [sum(value * math.cos(k * angle) for value, angle in zip(values, angles)) for k in range(terms)]
    return tuple(total * (1 if k in (0, last) else 2) / last for k, total in enumerate(sums))


def _series(resolvent: Tensor, y: Tensor, iterations: int) -> Tensor:
    """The Chebyshev series in W, times y, by the polynomials' recurrence."""
    least, most = _interval(iterations)
    stretch, center = 2 / (most - least), (most + least) / (most - least)
    first, second, *others = chebyshev_coefficients(iterations, _TERMS[y.dtype])
    before, term = y, add_product(y, resolvent, y, beta=-center, alpha=stretch)
    total = first * before + second * term
    for coefficient in others:
        shifted = before.add(term, alpha=2 * center)
        before, term = term, add_product(shifted, resolvent, term, beta=-1, alpha=2 * stretch)
        total.add_(term, alpha=coefficient)
    return total


def _interval(iterations: int) -> Tuple[float, float]:
    """Where μ lies, given that αλ² ≤ 2."""
    return 1 / (math.sqrt(2 * 2.0**iterations) + _SHIFT), 1 / _SHIFT


def _quotient(mu: float, iterations: int) -> float:
    """F(x) / μ, without F's fall to zero at the right end, see :func:`_border`."""
    x, steps = 1 / mu - _SHIFT, 2.0**iterations
    if x < 1e-9:
        return x / mu
    square = x * x / steps
    return (-math.expm1(steps * math.log1p(-square)) if square < 1 else 1) / x / mu


def _reflection(vector: Tensor) -> Tensor:
    """The u in ``I - u uᵀ``, the reflection that takes ``vector`` of shape (g, m, 1) to the first axis."""
    unit = vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True).clamp(min=torch.finfo(vector.dtype).tiny)
    first = unit[:, :1]
    axis = torch.cat([torch.where(first < 0, first - 1, first + 1), unit[:, 1:]], dim=1)
    return axis * (1 + first.abs()).rsqrt()


def _reflect(x: Tensor, axis: Tensor) -> Tensor:
    return torch.addcmul(x, axis, (axis * x).sum(1, keepdim=True), value=-1)


def _reflect_both_sides(matrix: Tensor, sums: Tensor, axis: Tensor) -> Tensor:
    """The mean entry, which rounding would not tell from the others, is taken out before and put back after."""
    mean = sums.mean(1, keepdim=True) / matrix.size(-1)
    ones = _reflect(torch.ones_like(sums), axis)
    rest = matrix - mean
    image = exact_product(rest, axis)
    image = image - 0.5 * (axis * image).sum(1, keepdim=True) * axis
    left, right = torch.cat([axis, image, -mean * ones], 2), torch.cat([image, axis, ones], 2)
    return add_product_(rest, left, right.transpose(1, 2), alpha=-1)


def _border(matrix: Tensor, sums: Tensor, alpha: Tensor, iterations: int) -> Tuple[Tensor, Tensor]:
    r"""What the iteration takes from the largest eigenvalue at :math:`\alpha\lambda^2 = 2`, where it falls to zero.

    An eigenvalue gets there only as the row sum of a matrix all of whose row sums are equal. Its vector is constant, or
    arbitrary where the row sums are the diagonal alone (the second value). Both are of shape (g, 1, 1).
    """
    border = (alpha * sums.amin(1, keepdim=True).square() - 1).clamp(min=0).pow(2.0**iterations)
    beside = sums - matrix.diagonal(dim1=1, dim2=2).unsqueeze(-1)
    return border, beside.amax(1, keepdim=True) <= 8 * torch.finfo(matrix.dtype).eps
