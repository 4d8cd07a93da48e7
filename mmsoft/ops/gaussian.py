r"""SOFT's Gaussian kernel :math:`K_{ij} = \exp(-\frac12 \|x_i - y_j\|^2)`, and its product with values.

The product never holds the whole kernel. PyTorch's fused attention kernels compute it (:mod:`mmsoft.ops.fused`), or a
loop over tiles, which the environment variable ``MMSOFT_GAUSSIAN=tiled`` enforces. Neither supports torch.func.
"""

from math import prod
from typing import Any, Optional

import torch
from torch import Tensor

from . import fused
from .numerics import as_operator, at_least_float32, exact_product, is_compiling, is_exporting, no_autocast

TILE_ELEMENTS = {'cpu': 2**20, 'cuda': 2**27}  # of the kernel, at a time; on a CPU, a tile stays in cache
MIN_EXPONENT = -80.0  # below -87.3 exp is 0 or subnormal; subnormal numbers make a CPU several times as slow


@at_least_float32
def gaussian_kernel(x: Tensor, y: Optional[Tensor] = None, ridge: float = 0.0) -> Tensor:
    r"""Gaussian kernel :math:`K_{ij} = \exp(-\frac12 \|x_i - y_j\|^2)` (2110.11945, Eq. 4, with √d in the tokens).

    Maps tokens (..., n, d) and (..., m, d) to (..., n, m), with values in (0, 1] and the dtype of ``x``; computes in at
    least float32. ``y`` defaults to ``x``: then the diagonal is 1 + ``ridge``, which otherwise has no effect.
    """
    diagonal = 1 + ridge if y is None else None
    if not is_exporting():
        return _GaussianKernel.apply(x, x.view_as(x) if y is None else y, diagonal)
    kernel = _kernel(*_centred(x, x if y is None else y))
    if diagonal is None:
        return kernel
    token = torch.arange(x.size(-2), device=x.device)
    return kernel.masked_fill(token == token.unsqueeze(-1), diagonal)


@at_least_float32
def gaussian_product(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    r"""Gaussian kernel matrix times values, :math:`O_i = \sum_j \exp(-\frac12 \|x_i - y_j\|^2) \, b_j`.

    Maps tokens (B, h, n, d), (B, h, m, d) and values (B, h, m, c) of one dtype to (B, h, n, c), in at least float32. B
    and h are broadcast. The n×m matrix is never held, nor in the backward pass unless ``create_graph=True``.
    """
    if is_exporting():
        return _kernel(*_centred(x, y)) @ b
    lead = torch.broadcast_shapes(*(t.shape[:-2] for t in (x, y, b)))  # fused kernels would read past the end
    y, b = y.expand(*lead, b.size(-2), -1), b.expand(*lead, y.size(-2), -1)
    return _GaussianProduct.apply(x.expand(*lead, -1, -1), y, b)


class _GaussianKernel(torch.autograd.Function):
    """:func:`gaussian_kernel`, with a given number on the diagonal, if any."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, diagonal: Optional[float]) -> Tensor:
        kernel = _kernel(*_centred(x, y))
        if diagonal is not None:
            kernel.diagonal(dim1=-2, dim2=-1).fill_(diagonal)
        ctx.save_for_backward(x, y, kernel)
        return kernel

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        x, y, kernel = ctx.saved_tensors
        x, y = _centred(x, y)
        with no_autocast(x.device.type):
            weight = grad * kernel
            dx = exact_product(weight, y) - weight.sum(-1).unsqueeze(-1) * x
            dy = exact_product(weight.transpose(-2, -1), x) - weight.sum(-2).unsqueeze(-1) * y
        return dx, dy, None


class _GaussianProduct(torch.autograd.Function):
    """:func:`gaussian_product`. For the output's gradient G and ``W = K ⊙ (G bᵀ)``, ``∂x_i = Σ_j W_ij (y_j - x_i)``, ∂y
    alike, and ``∂b = Kᵀ G``; the sums of W over rows and columns are ``O_i · G_i`` and ``b_j · ∂b_j``.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, b: Tensor) -> Tensor:
        out = (_compiled_forward if is_compiling() else _forward)(*_centred(x, y), b)
        ctx.save_for_backward(x, y, b, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, y, b, out = ctx.saved_tensors
        rows = (grad * out).sum(-1, keepdim=True)
        x, y = _centred(x, y)
        with no_autocast(x.device.type):
            dx, dy, db = (_compiled_backward if is_compiling() else _backward)(grad, x, y, b)
        columns = (b * db).sum(-1, keepdim=True)
        return dx.addcmul_(rows, x, value=-1), dy.addcmul_(columns, y, value=-1), db


def _forward(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    """:func:`gaussian_product` of centred tokens."""
    if fused.serves(x, y, b):
        return fused.forward(x, y, b)
    return torch.cat([exact_product(_kernel(rows, y), b) for rows in _tiles(x, y)], -2)


def _backward(grad: Tensor, x: Tensor, y: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`mmsoft.ops.fused.backward`, or tile by tile, which is differentiable."""
    if fused.serves(x, y, b) and not torch.is_grad_enabled():
        return fused.backward(grad, x, y, b)
    dx, dy, db = [], torch.zeros_like(y), torch.zeros_like(b)
    for rows, row_grad in zip(_tiles(x, y), _tiles(grad, y)):
        tile = _kernel(rows, y)
        db += exact_product(tile.transpose(-2, -1), row_grad)
        weight = exact_product(row_grad, b.transpose(-2, -1)).mul_(tile)
        dx.append(exact_product(weight, y))
        dy += exact_product(weight.transpose(-2, -1), rows)
    return torch.cat(dx, -2), dy, db


# A compiler would materialise the bias of the scores, which a GPU's fused kernels read as one expanded row.
_compiled_forward = as_operator('gaussian', _forward, lambda x, y, b: b.new_empty(*x.shape[:-1], b.size(-1)))
_compiled_backward = as_operator('gaussian_grad', _backward, lambda _, *xyb: tuple(t.new_empty(t.shape) for t in xyb))


def _tiles(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Splits the rows of x, so that the kernel of each part with all of y is no larger than a tile."""
    elements = TILE_ELEMENTS.get(x.device.type, TILE_ELEMENTS['cuda'])
    return x.split(max(1, elements // max(1, prod(y.shape[:-1]))), dim=-2)


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """Kernel (..., n, m) of tokens (..., n, d) and (..., m, d), by one matrix product that includes the norms."""
    half_x, half_y = (t.square().sum(-1, keepdim=True) * -0.5 for t in (x, y))
    rows = torch.cat([x, half_x, torch.ones_like(half_x)], -1)
    columns = torch.cat([y, torch.ones_like(half_y), half_y], -1)
    return exact_product(rows, columns.transpose(-2, -1)).clamp_(MIN_EXPONENT, 0).exp_()


def _centred(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Subtracts the mean of the smaller token set from both, which keeps digits, even with a query far away."""
    if not is_exporting() and (x.numel() == 0 or y.numel() == 0):
        return x, y
    center = (y if is_exporting() or y.size(-2) <= x.size(-2) else x).detach().mean(-2, keepdim=True)
    return x - center, y - center
