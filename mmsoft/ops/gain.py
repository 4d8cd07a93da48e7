r"""The gain that gives SOFT's attention with few bottleneck tokens the scale it has with all of them.

Fewer tokens change the scale of the output by orders of magnitude, its direction by a few percent. The gain
:math:`\langle o, o' \rangle / \langle o', o' \rangle` of the outputs o with all and o' with few tokens is estimated
from some columns of values at some tokens, with Newton's filter of the kernel matrix taken on a small Krylov space.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

from .gaussian import gaussian_kernel
from .inverse import inverse_product
from .numerics import at_least_float32, exact_product, is_compiling, is_exporting
from .soft import RIDGE, norm_alpha, soft_attention, soft_norm_attention

# Tokens and columns of the estimate, and steps of their Krylov space, whose width columns · steps is that of a matrix
# which inverse_product iterates. Networks of plain SOFT magnify a wrong scale.
SIZES: dict[bool, tuple[int, int, int]] = {False: (256, 8, 12), True: (128, 8, 4)}
GROUP_ELEMENTS = {'cpu': 5 * 2**20, 'cuda': 2**27}  # of kernels at a time: four heads of SOFT-Norm at 800×1344


@at_least_float32
def matched_attention(
    q: Tensor, few: Tensor, v: Tensor, full: Tensor, norm: bool = True, iterations: int = 20
) -> Tensor:
    """SOFT, or SOFT-Norm with ``norm``, with few bottleneck tokens (B, h, m, d) in place of all (B, h, M, d).

    It is multiplied by the gain that brings each head next to the one with all tokens, a constant for gradients. Other
    arguments and the result are those of :func:`mmsoft.ops.soft_attention`.
    """
    out = (soft_norm_attention if norm else soft_attention)(q, few, v, iterations)
    estimate = _compiled_gain if is_compiling() else matched_gain
    return out * estimate(q.detach(), few.detach(), v.detach(), full.detach(), norm, iterations)


def matched_gain(q: Tensor, few: Tensor, v: Tensor, full: Tensor, norm: bool, iterations: int) -> Tensor:
    """Estimate of the gain, shape (B, h, 1, 1); the arguments are those of :func:`matched_attention`."""
    tokens, width, _ = SIZES[norm]
    with torch.no_grad():
        token = spread_places(q.size(2), tokens, q.device)
        place = torch.arange(1.0, 1 + v.size(-1) * width, dtype=torch.float64, device=v.device)
        columns = place.square().cos().to(v.dtype).view(v.size(-1), -1)  # as good as random, and the same everywhere
        q, u = q[:, :, token], exact_product(v[:, :, token], columns)
        out, wanted = (_attend(tokens, q, u, norm, iterations) for tokens in (few, full))
        power = out.square().sum((2, 3), keepdim=True)
        gain = (out * wanted).sum((2, 3), keepdim=True) / power
        return torch.where(power > 0, gain, torch.ones_like(power))


_compiled_gain: Any = matched_gain
if hasattr(torch.library, 'custom_op'):  # since torch 2.4; its many small operators would take a compiler minutes
    _compiled_gain = torch.library.custom_op('mmsoft::matched_gain', matched_gain, mutates_args=())
    _compiled_gain.register_fake(lambda q, *_: q.new_empty(*q.shape[:2], 1, 1))


def _attend(tokens: Tensor, q: Tensor, u: Tensor, norm: bool, iterations: int) -> Tensor:
    """Attention of columns u (B, h, s, k) at queries q (B, h, s, d) by bottleneck tokens: (B, h, s, k)."""
    lead, m = tokens.shape[:2], tokens.size(2)
    elements = GROUP_ELEMENTS.get(q.device.type, GROUP_ELEMENTS['cuda'])
    heads = prod(lead) if is_exporting() else max(1, elements // (m * (m + q.size(2))))
    groups = (t.flatten(0, 1).split(heads) for t in (tokens, q, u))
    backs, bases, *parts = zip(*(_project(t, q, u, norm) for t, q, u in zip(*groups)))
    matrix, columns, *sums = map(torch.cat, parts)
    row_sums, *squares = (one.unflatten(0, lead) for one in sums)
    if norm:
        alpha = norm_alpha(row_sums, *squares).expand(*lead, 1, 1)
    else:
        alpha = 1.8 / row_sums.amax(2, keepdim=True).square()
    z = inverse_product(matrix, columns, alpha.flatten(0, 1), iterations).split(heads)
    outs = [exact_product(exact_product(basis, one).mT, back.mT) for back, basis, one in zip(backs, bases, z)]
    return torch.cat(outs).mT.unflatten(0, lead)


def _project(tokens: Tensor, q: Tensor, u: Tensor, norm: bool) -> tuple[Tensor, ...]:
    """What attention by a few heads' tokens becomes on an orthonormal basis Q of a Krylov space.

    There attention is P Q f(T) c with Newton's f, T = Qᵀ A Q, c = Qᵀ Pᵀ u. Returns P (g, s, m), Q (g, m, r), T, c, row
    sums of A, row sums and diagonal of A² (g, m, 1). A = Aᵀ is multiplied from the left: faster.
    """
    m = tokens.size(1)
    kernel, back = gaussian_kernel(torch.cat([tokens, q], 1), tokens).split([m, q.size(1)], 1)
    row_sums = kernel.sum(-1, keepdim=True)
    squares = exact_product(row_sums.mT, kernel).mT, torch.linalg.vector_norm(kernel, dim=-1, keepdim=True).square()
    back = back * row_sums.rsqrt().mT if norm else back.clone()  # a view would keep the whole kernel
    y = exact_product(u.mT, back).mT
    basis, matrix = _krylov(kernel, y, SIZES[norm][2])
    if not norm:
        matrix = matrix + RIDGE * torch.eye(matrix.size(-1), dtype=matrix.dtype, device=matrix.device)
    return back, basis, matrix, exact_product(basis.mT, y), row_sums, *squares


def _krylov(matrix: Tensor, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Orthonormal basis Q of [C, A C, A² C, ...] for A (g, m, m) and C (g, m, k), and QᵀAQ.

    New columns lie almost in the span of the old ones. Householder's QR decomposition of all keeps Q orthonormal up to
    rounding. Where a column adds no direction, it returns another one, which is harmless, and never more than m.
    """
    basis, _ = torch.linalg.qr(start)
    products = [exact_product(basis.mT, matrix)]
    for _ in range(steps - 1):
        new = torch.linalg.qr(torch.cat([basis, products[-1].mT], -1)).Q[:, :, basis.size(-1) :]
        basis = torch.cat([basis, new], -1)
        products.append(exact_product(new.mT, matrix))
    return basis, exact_product(torch.cat(products, 1), basis)


def spread_places(n: int, count: int, device: torch.device) -> Tensor:
    """Up to ``count`` of n places, one in each run of equal length, which follow no column of the map: (count,)."""
    run = torch.arange(min(n, count), device=device)
    return run * n // len(run) + ((run * 2654435769 % 2**32) * (n // len(run)) >> 32)  # fractions of the golden ratio
