"""The Gaussian kernel of two token sets, and its product with values, streamed over the longer set."""
from typing import Iterator, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .precision import no_autocast

# Elements of one tile of the kernel matrix. On a CPU a tile stays in cache between the exponential and the products.
TILE_ELEMENTS = {'cpu': 2**20, 'cuda': 2**26}


def gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    r"""Gaussian kernel :math:`K_{ij} = \exp(-\frac12 \|x_i - y_j\|^2)` (SOFT, Eq. 4).

    Args:
        x (Tensor): Tokens of shape (..., n, d).
        y (Tensor): Tokens of shape (..., m, d), same leading dimensions.

    Returns:
        Tensor: Kernel matrix of shape (..., n, m), values in (0, 1].
    """
    half_x = x.square().sum(-1).mul(0.5).unsqueeze(-1)
    half_y = y.square().sum(-1).mul(0.5).unsqueeze(-2)
    return (x @ y.transpose(-2, -1) - half_x - half_y).clamp(max=0).exp()


def gaussian_product(x: Tensor, y: Tensor, b: Tensor, tile_elements: Optional[int] = None) -> Tensor:
    r"""Gaussian kernel matrix times values, :math:`O_i = \sum_j \exp(-\frac12 \|x_i - y_j\|^2) \, b_j`.

    The n×m matrix is never held: it is made tile by tile along its longer side, in the forward pass and, from ``x``,
    ``y`` and ``b`` alone, again in the backward pass. With :math:`W = K \odot (G b^\top)` for the output's gradient
    G, the exact gradients are :math:`\partial b = K^\top G`, :math:`\partial x = W y - \mathrm{diag}(W 1) \, x` and
    :math:`\partial y = W^\top x - \mathrm{diag}(W^\top 1) \, y`.

    Args:
        x (Tensor): Tokens of shape (..., n, d), float32 or float64.
        y (Tensor): Tokens of shape (..., m, d), same leading dimensions and dtype.
        b (Tensor): Values at the tokens ``y``, shape (..., m, c).
        tile_elements (int, optional): Elements of the kernel matrix in memory at a time. Defaults to what the
            device's cache (CPU) or parallelism (CUDA) asks for.

    Returns:
        Tensor: Shape (..., n, c).
    """
    lead = x.shape[:-1]
    x, y, b = (t.reshape(-1, *t.shape[-2:]) for t in (x, y, b))
    if tile_elements is None:
        tile_elements = TILE_ELEMENTS.get(x.device.type, TILE_ELEMENTS['cuda'])
    return _GaussianProduct.apply(x, y, b, tile_elements).reshape(*lead, b.size(-1))


class _GaussianProduct(torch.autograd.Function):
    """:func:`gaussian_product` on (g, n, d), (g, m, d) and (g, m, c)."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor, b: Tensor, tile_elements: int) -> Tensor:
        ctx.save_for_backward(x, y, b)
        ctx.tile_elements = tile_elements
        out = torch.zeros_like(x[..., :1]).expand(-1, -1, b.size(-1)).contiguous()
        for g, i, j in _tiles(x, y, tile_elements):
            out[g, i] += _kernel(x[g, i], y[g, j]) @ b[g, j]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, y, b = ctx.saved_tensors
        dx, dy, db = torch.zeros_like(x), torch.zeros_like(y), torch.zeros_like(b)
        with no_autocast(x.device.type):
            for g, i, j in _tiles(x, y, ctx.tile_elements):
                xi, yj, bj, grad_i = x[g, i], y[g, j], b[g, j], grad[g, i]
                kernel = _kernel(xi, yj)
                db[g, j] += kernel.transpose(1, 2) @ grad_i
                weight = kernel.mul_(grad_i @ bj.transpose(1, 2))
                dx[g, i] += weight @ yj - weight.sum(2, keepdim=True) * xi
                dy[g, j] += weight.transpose(1, 2) @ xi - weight.sum(1).unsqueeze(2) * yj
        return dx, dy, db, None


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """:func:`gaussian_kernel` of (g, n, d) and (g, m, d): one product, the rest in place."""
    half_y = y.square().sum(2).mul_(-0.5).unsqueeze(1)
    kernel = torch.baddbmm(half_y, x, y.transpose(1, 2))
    return kernel.sub_(x.square().sum(2, keepdim=True).mul_(0.5)).clamp_(max=0).exp_()


def _tiles(x: Tensor, y: Tensor, elements: int) -> Iterator[Tuple[slice, slice, slice]]:
    """Slices (group, rows, columns) that tile g kernel matrices of n×m: whole matrices, or runs of the longer side."""
    groups, n, m = x.size(0), x.size(1), y.size(1)
    if n * m <= elements:
        step = elements // (n * m)
        for g in range(0, groups, step):
            yield slice(g, g + step), slice(None), slice(None)
        return
    step = max(1, elements // min(n, m))
    for g in range(groups):
        for start in range(0, max(n, m), step):
            long = slice(start, start + step)
            yield slice(g, g + 1), long if n >= m else slice(None), slice(None) if n >= m else long
