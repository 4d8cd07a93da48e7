r"""The Newton–Raphson inverse of SOFT, its closed form, and its product with a thin matrix.

The iteration :math:`V \leftarrow 2V - V M V` from :math:`V_0 = \alpha M` (SOFT, arXiv 2110.11945, Alg. 2) acts on each
eigenvalue of the symmetric M alone, so T steps of it have a closed form, the spectral filter
:math:`f(\lambda) = (1 - (1 - \alpha\lambda^2)^{2^T}) / \lambda`. Where the iteration has converged, this is
:math:`1/\lambda`; where it has not, f goes to zero with :math:`\lambda` and keeps the result bounded, which the trained
networks rely on. Both passes need no more than :math:`f(M)` times thin matrices (arXiv 2207.03341, Eq. 16), of which a
method of this file makes a factorisation once.
"""
import itertools
import math
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import resolvent
from .cores import side_by_side
from .numerics import add_product, custom_operator, exact_product, is_compiling, is_exporting, is_observed, no_autocast


def newton_inverse(matrix: Tensor, alpha: Tensor, iterations: int = 20) -> Tensor:
    """Newton–Raphson inverse, the iteration as the paper writes it (2110.11945, Alg. 2).

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

    The gradient is :math:`\partial y = V G` and :math:`\partial M = -V G (V y)^\top` (2207.03341, Eq. 16, multiplied
    out), so that the backward pass takes the forward pass's factorisation of M. No result depends on the other
    matrices of the batch, and no method but ``'closed_form'`` reads a value back from the device.

    Args:
        matrix (Tensor): Symmetric positive semidefinite matrices M of shape (..., m, m), float32 or float64.
        y (Tensor): Shape (..., m, c), same leading dimensions.
        alpha (Tensor): Scale of the starting value, broadcastable to (..., 1, 1), at most ``2 / ‖M‖₁²``. Not
            differentiated.
        iterations (int): Number of steps. Defaults to 20.
        method (str): One of :data:`INVERSE_METHODS`: ``'newton'`` iterates, ``'closed_form'`` filters the eigenvalues
            in float64, ``'resolvent'`` filters by a rational approximation (:mod:`mmsoft.ops.resolvent`), ``'krylov'``
            is its former name, ``'auto'`` takes Newton's few small products up to 96 tokens and the resolvent beyond.
            Fewer than 16 steps are always iterated, except by the closed form.

    Returns:
        Tensor: Shape (..., m, c); NaN where M is not finite.

    Raises:
        ValueError: If ``method`` is unknown.
    """
    if method not in INVERSE_METHODS:
        raise ValueError(f'unknown inverse method {method!r}; choose one of {", ".join(INVERSE_METHODS)}')
    alpha = alpha.detach()
    m, lead = matrix.size(-1), matrix.shape[:-2]
    groups = math.prod(lead)
    alpha = alpha.expand(*lead, 1, 1).reshape(groups, 1, 1)
    matrix, columns = matrix.reshape(groups, m, m), y.reshape(groups, m, y.size(-1))
    if is_exporting():
        fixed = matrix.detach()
        inverse, = _iterate(fixed, alpha, iterations)
        out = exact_product(inverse, columns)
        if matrix.requires_grad:  # its value is out; its differential is the exact inverse's, not the iteration's
            out = out - exact_product(inverse, exact_product(matrix - fixed, out))
        return out.reshape(y.shape)
    if is_compiling():
        return _CompiledProduct.apply(matrix, columns, alpha, iterations, method).reshape(y.shape)
    method = _choose(method, m, iterations)
    return _InverseProduct.apply(matrix, columns, alpha, iterations, method).reshape(y.shape)


# From this many tokens on a processor works on each matrix by itself: it fits a core's cache, and is worth its operators.
_LARGE = 512


def _parts(matrix: Tensor) -> List[slice]:
    """Which of the matrices (g, m, m) are worked on together."""
    groups, m = matrix.shape[:2]
    if matrix.device.type != 'cpu' or is_observed() or groups == 0 or m < _LARGE:
        return [slice(None)]
    return [slice(group, group + 1) for group in range(groups)]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class _InverseProduct(torch.autograd.Function):
    """:func:`inverse_product` on (g, m, m), (g, m, c) and (g, 1, 1)."""

    @staticmethod
    def forward(ctx, matrix: Tensor, y: Tensor, alpha: Tensor, iterations: int, method: str) -> Tensor:
        ctx.iterations, ctx.method = iterations, method
        ctx.parts = _parts(matrix)
        kept = any(ctx.needs_input_grad)

        def solve(part: slice) -> Tuple[Tensor, Tuple[Tensor, ...]]:
            factors = _METHODS[method].factorize(matrix[part], alpha[part], iterations)
            return _METHODS[method].apply(factors, y[part], iterations), factors if kept else ()

        outs, factors = zip(*side_by_side(solve, ctx.parts))
        out = _joined(outs)
        ctx.save_for_backward(out, *itertools.chain(*factors))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        out, *factors = ctx.saved_tensors
        kinds = len(factors) // len(ctx.parts)

        def solve(index: int) -> Tensor:
            own = tuple(factors[index * kinds:(index + 1) * kinds])
            return _METHODS[ctx.method].apply(own, grad[ctx.parts[index]], ctx.iterations)

        with no_autocast(grad.device.type):
            dy = _joined(side_by_side(solve, range(len(ctx.parts))))
            dmatrix = exact_product(-dy, out.transpose(1, 2)) if ctx.needs_input_grad[0] else None
        return dmatrix, dy, None, None, None


@custom_operator
def newton_product(matrix: Tensor, y: Tensor, alpha: Tensor, iterations: int, method: str) -> Tensor:
    """:func:`inverse_product` on (g, m, m), (g, m, c) and (g, 1, 1)."""
    return inverse_product(matrix, y, alpha, iterations, method).contiguous()


class _CompiledProduct(torch.autograd.Function):
    """:class:`_InverseProduct` of an operator for both passes. It returns no factors, so the second makes them anew."""

    @staticmethod
    def forward(ctx, matrix: Tensor, y: Tensor, alpha: Tensor, iterations: int, method: str) -> Tensor:
        ctx.options = iterations, method
        out = newton_product(matrix, y, alpha, iterations, method)
        ctx.save_for_backward(matrix, alpha, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        matrix, alpha, out = ctx.saved_tensors
        with no_autocast(grad.device.type):
            dy = newton_product(matrix, grad, alpha, *ctx.options)
            return exact_product(-dy, out.transpose(1, 2)), dy, None, None, None


class _Method(NamedTuple):
    """A factorisation of f(M), as tensors that autograd may keep, move or free, and the product with it."""
    factorize: Callable[[Tensor, Tensor, int], Tuple[Tensor, ...]]
    apply: Callable[[Tuple[Tensor, ...], Tensor, int], Tensor]


def _iterate(matrix: Tensor, alpha: Tensor, iterations: int) -> Tuple[Tensor, ...]:
    inverse = alpha * matrix
    for _ in range(iterations):
        inverse = add_product(inverse, exact_product(inverse, matrix), inverse, beta=2, alpha=-1)
    return (inverse, )


def _multiply(factors: Tuple[Tensor, ...], y: Tensor, iterations: int) -> Tensor:
    return exact_product(factors[0], y)


def _diagonalize(matrix: Tensor, alpha: Tensor, iterations: int) -> Tuple[Tensor, ...]:
    finite = matrix.isfinite().all(-1).all(-1).view(-1, 1, 1)
    eigenvalues, vectors = torch.linalg.eigh(matrix.double().masked_fill(~finite, 0))
    gain = newton_filter(eigenvalues, alpha.squeeze(-1).double(), iterations).unsqueeze(-1)
    return vectors, gain.masked_fill(~finite, math.nan)


def _filter(factors: Tuple[Tensor, ...], y: Tensor, iterations: int) -> Tensor:
    vectors, gain = factors
    return (vectors @ (gain * (vectors.transpose(1, 2) @ y.double()))).to(y.dtype)


_METHODS: Dict[str, _Method] = {
    'newton': _Method(_iterate, _multiply),
    'closed_form': _Method(_diagonalize, _filter),
    'resolvent': _Method(resolvent.factorize, resolvent.filter_product),
}
INVERSE_METHODS = ('auto', *_METHODS, 'krylov')

# Up to this many tokens the iteration's few small products cost less than the resolvent's many thin ones.
_FEW = 96


def _choose(method: str, m: int, iterations: int) -> str:
    """The key of :data:`_METHODS` that ``method`` stands for; nothing that a device would have to tell decides."""
    if method in ('newton', 'closed_form'):
        return method
    if iterations < resolvent.LEAST_ITERATIONS or method == 'auto' and m <= _FEW:
        return 'newton'
    return 'resolvent'
