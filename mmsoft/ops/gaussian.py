r"""The Gaussian kernel of two token sets, and its product with values, streamed over the longer set.

The squared norms are folded into the tokens, :math:`x' = (x, -\frac12\|x\|^2, 1)` and
:math:`y' = (y, 1, -\frac12\|y\|^2)`, so that the kernel is the exponential of one product,
:math:`\exp(-\frac12 \|x - y\|^2) = \exp(x' \cdot y')`.
"""
from typing import Iterator, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .precision import no_autocast

# Elements of one tile of the kernel matrix. On a CPU a tile stays in cache between the exponential and the products.
TILE_ELEMENTS = {'cpu': 2**20, 'cuda': 2**26}


def gaussian_kernel(x: Tensor, y: Optional[Tensor] = None) -> Tensor:
    r"""Gaussian kernel :math:`K_{ij} = \exp(-\frac12 \|x_i - y_j\|^2)` (SOFT, Eq. 4).

    Args:
        x (Tensor): Tokens of shape (..., n, d).
        y (Tensor, optional): Tokens of shape (..., m, d), same leading dimensions. Defaults to ``x`` itself, with ones
            on the diagonal free of rounding.

    Returns:
        Tensor: Kernel matrix of shape (..., n, m), values in (0, 1] up to rounding.
    """
    rows, columns = fold_norms(x, x if y is None else y)
    exponent = rows @ columns.mT
    if y is None:
        exponent.diagonal(dim1=-2, dim2=-1).zero_()
    return _Exp.apply(exponent)


def gaussian_product(x: Tensor, y: Tensor, b: Tensor, tile_elements: Optional[int] = None) -> Tensor:
    r"""Gaussian kernel matrix times values, :math:`O_i = \sum_j \exp(-\frac12 \|x_i - y_j\|^2) \, b_j`.

    The n×m matrix is never held, see :func:`exp_product`.

    Args:
        x (Tensor): Tokens of shape (..., n, d), float32 or float64.
        y (Tensor): Tokens of shape (..., m, d), same leading dimensions and dtype.
        b (Tensor): Values at the tokens ``y``, shape (..., m, c).
        tile_elements (int, optional): Elements of the kernel matrix in memory at a time. Defaults to what the
            device's cache (CPU) or parallelism (CUDA) asks for.

    Returns:
        Tensor: Shape (..., n, c).
    """
    return exp_product(*fold_norms(x, y), b, tile_elements)


def fold_norms(x: Tensor, y: Tensor) -> Tuple[Tensor, Tensor]:
    """Tokens of shape (..., n, d) and (..., m, d) with their norms folded in: (..., n, d + 2) and (..., m, d + 2)."""
    half_x, half_y = (t.square().sum(-1, keepdim=True) * -0.5 for t in (x, y))
    return torch.cat([x, half_x, torch.ones_like(half_x)], -1), torch.cat([y, torch.ones_like(half_y), half_y], -1)


def exp_product(x: Tensor, y: Tensor, b: Tensor, tile_elements: Optional[int] = None) -> Tensor:
    r"""Product with an exponential of inner products, :math:`O_i = \sum_j \exp(x_i \cdot y_j) \, b_j`.

    The matrix :math:`K = \exp(x y^\top)` is made tile by tile along its longer side, in the forward pass and, from
    ``x``, ``y`` and ``b`` alone, again in the backward pass. With :math:`W = K \odot (G b^\top)` for the output's
    gradient G, the exact gradients are :math:`\partial x = W y`, :math:`\partial y = W^\top x` and
    :math:`\partial b = K^\top G`.

    Arguments and result are those of :func:`gaussian_product`, norms folded in.
    """
    lead = x.shape[:-1]
    x, y, b = (t.reshape(-1, *t.shape[-2:]) for t in (x, y, b))
    if tile_elements is None:
        tile_elements = TILE_ELEMENTS.get(x.device.type, TILE_ELEMENTS['cuda'])
    return _ExpProduct.apply(x, y, b, tile_elements).reshape(*lead, b.size(-1))


class _Exp(torch.autograd.Function):
    """In-place exponential of a product that nothing else needs."""

    @staticmethod
    def forward(ctx, exponent: Tensor) -> Tensor:
        ctx.mark_dirty(exponent)
        ctx.save_for_backward(exponent.exp_())
        return exponent

    @staticmethod
    def backward(ctx, grad: Tensor):
        kernel, = ctx.saved_tensors
        return grad * kernel


class _ExpProduct(torch.autograd.Function):
    """:func:`exp_product` on (g, n, d), (g, m, d) and (g, m, c)."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor, b: Tensor, tile_elements: int) -> Tensor:
        ctx.save_for_backward(x, y, b)
        ctx.tile_elements = tile_elements
        out = x.new_zeros(x.size(0), x.size(1), b.size(2))
        for rows, columns in _tiles(x, y, tile_elements):
            out[rows].baddbmm_(_kernel(x[rows], y[columns]), b[columns])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, y, b = ctx.saved_tensors
        dx, dy, db = torch.zeros_like(x), torch.zeros_like(y), torch.zeros_like(b)
        with no_autocast(x.device.type):
            for rows, columns in _tiles(x, y, ctx.tile_elements):
                kernel = _kernel(x[rows], y[columns])
                db[columns].baddbmm_(kernel.mT, grad[rows])
                weight = kernel.mul_(grad[rows] @ b[columns].mT)
                dx[rows].baddbmm_(weight, y[columns])
                dy[columns].baddbmm_(weight.mT, x[rows])
        return dx, dy, db, None


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.mT).exp_()


def _tiles(x: Tensor, y: Tensor, elements: int) -> Iterator[Tuple[tuple, tuple]]:
    """Indices of x's and y's tokens that tile g matrices of n×m: whole matrices, or runs of the longer side."""
    groups, n, m = x.size(0), x.size(1), y.size(1)
    whole = slice(None)
    if n * m <= elements:
        step = elements // (n * m)
        for start in range(0, groups, step):
            yield (slice(start, start + step), whole), (slice(start, start + step), whole)
        return
    step = max(1, elements // min(n, m))
    for g in range(groups):
        group = slice(g, g + 1)
        for start in range(0, max(n, m), step):
            run = slice(start, start + step)
            yield (group, run if n >= m else whole), (group, whole if n >= m else run)
