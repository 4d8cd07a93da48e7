r"""The Gaussian kernel of two token sets, and its product with values, in which the kernel is never held.

Distances do not change if all tokens move, so they are taken around the mean of one set: rounding then depends on the
tokens' spread, not on where they are.
"""
from math import prod
from types import ModuleType
from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import fused, tiles
from .numerics import at_least_float32, exact_product, is_exporting, no_autocast


@at_least_float32
def gaussian_kernel(x: Tensor, y: Optional[Tensor] = None, ridge: float = 0.) -> Tensor:
    r"""Gaussian kernel :math:`K_{ij} = \exp(-\frac12 \|x_i - y_j\|^2)` (2110.11945, Eq. 4).

    Args:
        x (Tensor): Tokens of shape (..., n, d).
        y (Tensor, optional): Tokens of shape (..., m, d), same leading dimensions. Defaults to ``x`` itself, with ones
            on the diagonal free of rounding.
        ridge (float): Added to the diagonal of the kernel of ``x`` with itself. Defaults to 0.

    Returns:
        Tensor: Kernel matrix of shape (..., n, m), values in (0, 1], dtype of ``x``. Computed in float32 at least.
    """
    diagonal = 1 + ridge if y is None else None
    if is_exporting():
        return _plain_kernel(x, x if y is None else y, diagonal)
    return _GaussianKernel.apply(x, y, diagonal)


@at_least_float32
def gaussian_product(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    r"""Gaussian kernel matrix times values, :math:`O_i = \sum_j \exp(-\frac12 \|x_i - y_j\|^2) \, b_j`.

    Made by PyTorch's fused attention kernels (:mod:`mmsoft.ops.fused`) or, where it has none, in tiles: the n×m matrix
    is never held, neither here nor in the backward pass. With :math:`W = K \odot (G b^\top)` for the output's gradient
    G, the exact gradients are :math:`\partial x_i = \sum_j W_{ij} (y_j - x_i)`, :math:`\partial y` alike and
    :math:`\partial b = K^\top G`; the sums of W over rows and columns are :math:`O_i \cdot G_i` and
    :math:`b_j \cdot \partial b_j`.

    Args:
        x (Tensor): Tokens of shape (..., n, d).
        y (Tensor): Tokens of shape (..., m, d), same leading dimensions and dtype.
        b (Tensor): Values at the tokens ``y``, shape (..., m, c).

    Returns:
        Tensor: Shape (..., n, c), dtype of ``x``. Computed in float32 at least.
    """
    if is_exporting():
        return _plain_kernel(x, y) @ b
    lead = x.shape[:-2]
    grid = lead if len(lead) == 2 else (1, prod(lead))
    x, y, b = (t.reshape(*grid, *t.shape[-2:]) for t in (x, y, b))
    return _GaussianProduct.apply(x, y, b).reshape(*lead, x.size(-2), b.size(-1))


class _GaussianKernel(torch.autograd.Function):
    """:func:`gaussian_kernel`, with a given number on the diagonal, if any. Compilers want no tensor given twice."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Optional[Tensor], diagonal: Optional[float]) -> Tensor:
        kernel = tiles.kernel(*_centred(x, x if y is None else y))
        if diagonal is not None:
            kernel.diagonal(dim1=-2, dim2=-1).fill_(diagonal)
        ctx.save_for_backward(x, y, kernel)
        return kernel

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, other, kernel = ctx.saved_tensors
        x, y = _centred(x, x if other is None else other)
        with no_autocast(x.device.type):
            weight = grad * kernel
            dx = exact_product(weight, y) - weight.sum(-1).unsqueeze(-1) * x
            dy = exact_product(weight.transpose(-2, -1), x) - weight.sum(-2).unsqueeze(-1) * y
        return (dx + dy, None, None) if other is None else (dx, dy, None)


class _GaussianProduct(torch.autograd.Function):
    """:func:`gaussian_product` on (B, h, n, d), (B, h, m, d) and (B, h, m, c)."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor, b: Tensor) -> Tensor:
        out = _backend(x, y, b).forward(*_centred(x, y), b)
        ctx.save_for_backward(x, y, b, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, y, b, out = ctx.saved_tensors
        rows = (grad * out).sum(-1, keepdim=True)
        x, y = _centred(x, y)
        with no_autocast(x.device.type):
            dx, dy, db = _backend(x, y, b).backward(grad, x, y, b)
        columns = (b * db).sum(-1, keepdim=True)
        return dx.addcmul_(rows, x, value=-1), dy.addcmul_(columns, y, value=-1), db


def _backend(x: Tensor, y: Tensor, b: Tensor) -> ModuleType:
    return fused if fused.available(x, y, b) else tiles


def _centred(x: Tensor, y: Tensor) -> Tuple[Tensor, Tensor]:
    """Both token sets around the mean of the smaller one."""
    few = (y if y.size(-2) <= x.size(-2) else x).detach()
    center = few.mean(-2, keepdim=True) if few.size(-2) > 0 else few.sum(-2, keepdim=True)
    return x - center, y - center


def _plain_kernel(x: Tensor, y: Tensor, diagonal: Optional[float] = None) -> Tensor:
    center = sum(t.detach().mean(-2, keepdim=True) for t in (x, y)) / 2  # of both, as which is smaller is unknown
    x, y = x - center, y - center
    half_x, half_y = (t.square().sum(-1) * 0.5 for t in (x, y))
    exponent = x @ y.transpose(-2, -1) - half_x.unsqueeze(-1) - half_y.unsqueeze(-2)
    kernel = exponent.clamp(tiles.LEAST_EXPONENT, 0).exp()
    if diagonal is None:
        return kernel
    token = torch.arange(x.size(-2), device=x.device)
    return torch.where(token == token.unsqueeze(-1), diagonal, kernel)
