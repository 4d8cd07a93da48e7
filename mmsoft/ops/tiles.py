"""Products with a Gaussian kernel tile by tile, where PyTorch has no fused kernel for them.

Tokens are of shape (B, h, n, d) and (B, h, m, d), values of (B, h, m, c).
"""
from typing import Iterator, Tuple

import torch
from torch import Tensor

from .numerics import exact_product

# Elements of one tile of the kernel matrix. On a CPU a tile stays in cache between the exponential and the products.
TILE_ELEMENTS = {'cpu': 2**20, 'cuda': 2**27}
# Below it, exp is a subnormal number, with which a CPU is several times as slow, or 0.
LEAST_EXPONENT = -80.


def forward(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    r""":math:`K b` with :math:`K_{ij} = \exp(-\frac12 \|x_i - y_j\|^2)`."""
    lead, (x, y, b) = x.shape[:-1], (t.flatten(0, 1) for t in (x, y, b))
    out = x.new_zeros(*x.shape[:2], b.size(2))
    for rows, columns in _tiles(x, y):
        out[rows].add_(exact_product(kernel(x[rows], y[columns]), b[columns]))
    return out.view(*lead, b.size(2))


def backward(grad: Tensor, x: Tensor, y: Tensor, b: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    r""":math:`W y`, :math:`W^\top x` and :math:`K^\top G` with :math:`W = K \odot (G b^\top)`."""
    shapes = x.shape, y.shape, b.shape
    grad, x, y, b = (t.flatten(0, 1) for t in (grad, x, y, b))
    dx, dy, db = torch.zeros_like(x), torch.zeros_like(y), torch.zeros_like(b)
    for rows, columns in _tiles(x, y):
        tile = kernel(x[rows], y[columns])
        db[columns].add_(exact_product(tile.transpose(-2, -1), grad[rows]))
        tile *= exact_product(grad[rows], b[columns].transpose(-2, -1))
        dx[rows].add_(exact_product(tile, y[columns]))
        dy[columns].add_(exact_product(tile.transpose(-2, -1), x[rows]))
    return tuple(t.view(shape) for t, shape in zip((dx, dy, db), shapes))


def kernel(x: Tensor, y: Tensor) -> Tensor:
    """Kernel matrix of (..., n, d) and (..., m, d), the norms folded into one product: (..., n, m)."""
    half_x, half_y = (t.square().sum(-1, keepdim=True) * -0.5 for t in (x, y))
    rows = torch.cat([x, half_x, torch.ones_like(half_x)], -1)
    columns = torch.cat([y, torch.ones_like(half_y), half_y], -1)
    return exact_product(rows, columns.transpose(-2, -1)).clamp_(LEAST_EXPONENT, 0).exp_()


def _tiles(x: Tensor, y: Tensor) -> Iterator[Tuple[tuple, tuple]]:
    """Indices of x's and y's tokens that tile g matrices of n×m: whole matrices, or runs of the longer side."""
    elements = TILE_ELEMENTS.get(x.device.type, TILE_ELEMENTS['cuda'])
    groups, n, m = x.size(0), x.size(1), y.size(1)
    whole = slice(None)
    if n * m <= elements:
        step = elements // max(1, n * m)
        for start in range(0, groups, step):
            yield (slice(start, start + step), whole), (slice(start, start + step), whole)
        return
    step = max(1, elements // min(n, m))
    for g in range(groups):
        group = slice(g, g + 1)
        for start in range(0, max(n, m), step):
            run = slice(start, start + step)
            yield (group, run if n >= m else whole), (group, whole if n >= m else run)
