r"""The gain that rescales SOFT's attention with few bottleneck tokens to its scale with all of them.

Fewer tokens change the scale of the output by orders of magnitude, but its direction by a few percent. The gain
:math:`\langle o, o' \rangle / \langle o', o' \rangle`, of outputs o with all and o' with few tokens, is estimated at
some tokens for some columns of values; Newton's filter of the kernel matrix is applied in a small Krylov space.
"""

from functools import partial
from itertools import chain
from math import pi
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .gaussian import gaussian_kernel
from .inverse import inverse_product
from .numerics import as_operator, at_a_time, at_least_float32, exact_product, is_compiling, is_exporting
from .soft import RIDGE, attend, norm_alpha, soft_alpha

# By `norm`: tokens, columns and Krylov steps of the estimate. Networks of plain SOFT amplify a wrong scale.
SIZES: dict[bool, tuple[int, int, int]] = {False: (256, 8, 12), True: (128, 8, 4)}
GROUP_ELEMENTS = {'cpu': 2**22, 'cuda': 2**27}  # of kernels at a time; on a CPU two heads at 800×1344, 10 MB
_mt = partial(torch.transpose, dim0=1, dim1=2)  # ``t.mT`` of (g, n, m), which ONNX does not know


@at_least_float32
def matched_attention(
    q: Tensor, few: Tensor, v: Tensor, full: Tensor, norm: bool = True, iterations: int = 20
) -> Tensor:
    """SOFT, or SOFT-Norm with ``norm``, with ``few`` bottleneck tokens (B, h, m, d) for the ``full`` (B, h, M, d).

    Each head is multiplied by the gain that brings it closest to the head with all tokens. Gradients treat the gain as
    a constant. Other arguments and the result are those of :func:`mmsoft.ops.soft_attention`; each head has its values.
    """
    estimate = _compiled_gain if is_compiling() else matched_gain
    gain = estimate(q.detach(), few.detach(), v.detach(), full.detach(), norm, iterations)
    return attend(q, few, v, norm, iterations, gain)


def matched_gain(q: Tensor, few: Tensor, v: Tensor, full: Tensor, norm: bool, iterations: int) -> Tensor:
    """Estimates the gain, shape (B, h, 1, 1); the arguments are those of :func:`matched_attention`."""
    count, width, _ = SIZES[norm]
    with torch.no_grad():
        token = spread_places(q.size(2), count, q.device)
        q = q.index_select(2, token)
        u = exact_product(v.index_select(2, token), pseudo_random(v.size(-1), width, v))
        alphas, groups = zip(*(_project_all(tokens, q, u, norm) for tokens in (few, full)))
        backs, bases, matrices, columns = zip(*chain(*groups))
        z = inverse_product(torch.cat(matrices), torch.cat(columns), torch.cat(alphas), iterations)
        parts = map(exact_product, bases, z.split([basis.size(0) for basis in bases]))
        outs = torch.cat([exact_product(_mt(part), _mt(back)) for part, back in zip(parts, backs)])
        out = outs.reshape(2, *few.shape[:2], u.size(2) * width, 1)  # with few tokens, and with all
        power = out[0].square().sum(2, keepdim=True)
        return torch.where(power > 0, (out[0] * out[1]).sum(2, keepdim=True) / power, torch.ones_like(power))


_compiled_gain = as_operator('matched_gain', matched_gain, lambda q, *_: q.new_empty(*q.shape[:2], 1, 1))


def _project_all(tokens: Tensor, q: Tensor, u: Tensor, norm: bool) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """α (B · h, 1, 1), and :func:`_project` of each group of heads, for tokens (B, h, m, d) and u (B, h, s, k)."""
    lead, m = tokens.shape[:2], tokens.size(2)
    flat = [t.flatten(0, 1) for t in (tokens, q, u)]
    groups: Any = [flat]  # one group in ONNX, which forgets the rank of split tensors
    if not is_exporting():
        elements = GROUP_ELEMENTS.get(q.device.type, GROUP_ELEMENTS['cuda'])
        heads = at_a_time(elements, m * (m + q.size(2)), len(flat[0]))
        groups = zip(*(t.split(max(1, heads)) for t in flat)) if heads < len(flat[0]) else groups
    others = pseudo_random(m, SIZES[norm][2] * u.size(-1), u)
    parts = [_project(norm, others, *group) for group in groups]
    row_sums, *squares = (torch.cat(sums).reshape(*lead, m, 1) for sums in zip(*(part[4:] for part in parts)))
    alpha = norm_alpha(row_sums, *squares) if norm else soft_alpha(row_sums)
    return alpha.expand(*lead, 1, 1).flatten(0, 1), [part[:4] for part in parts]


def _project(norm: bool, others: Tensor, tokens: Tensor, q: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    """Projects the attention of g heads on an orthonormal basis Q of a Krylov space, where it is Pᵀ Q f(T) c.

    f is Newton's filter, T = Qᵀ A Q and c = Qᵀ P u; with ``norm``, P stands for D^-½ P. Returns Pᵀ (g, s, m), Q
    (g, m, r), T, c, row sums of A, and row sums and diagonal of A² (g, m, 1). xᵀA is faster than A x.
    """
    kernel, back = gaussian_kernel(torch.cat([tokens, q], 1), tokens).split([tokens.size(1), q.size(1)], 1)
    row_sums = kernel.sum(-1, keepdim=True)
    squares = _mt(exact_product(_mt(row_sums), kernel)), torch.linalg.vector_norm(kernel, dim=-1, keepdim=True).square()
    back = back * _mt(row_sums.rsqrt()) if norm else back.clone()  # a view would keep the whole kernel
    y = _mt(exact_product(_mt(u), back))
    basis, matrix = _krylov(kernel, y, others)
    if not norm:
        matrix = matrix + RIDGE * torch.eye(matrix.size(-1), dtype=matrix.dtype, device=matrix.device)
    return back, basis, matrix, exact_product(_mt(basis), y), row_sums, *squares


def _krylov(matrix: Tensor, start: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal basis Q (g, m, r) of [C, A C, A² C, ...] for A (g, m, m) and C (g, m, k), and QᵀAQ.

    New columns lie almost in the span of the old ones; orthogonalised twice, they are orthogonal up to rounding. A
    small multiple of ``others`` (m, r) is added: it replaces a column without a new direction, which is harmless.
    """
    m, width = start.shape[1:]
    limits, in_onnx = torch.finfo(start.dtype), torch.onnx.is_in_onnx_export()
    orthonormal: Any = torch.jit.script(_gram_schmidt) if in_onnx else _orthonormal
    spare = others.size(1) - m
    if spare >= 0 and not in_onnx:  # an ONNX graph serves any m
        basis = torch.eye(m, m + spare, dtype=matrix.dtype, device=matrix.device)
        return basis.expand(matrix.size(0), -1, -1), F.pad(matrix, (0, spare, 0, spare))
    basis, products = start[:, :, :0], [_mt(start)]
    for other in F.normalize(others, dim=0).mul(64 * limits.eps).split(width, 1):
        new = F.normalize(_mt(products[-1]), dim=1, eps=limits.tiny) + other
        for _ in range(min(2, len(products))):
            if len(products) > 1:  # for an empty basis, ONNX Runtime returns noise
                new = new - exact_product(basis, exact_product(_mt(basis), new))
            new = orthonormal(new)
        basis = torch.cat([basis, new], -1)
        products.append(exact_product(_mt(new), matrix))
    return basis, exact_product(torch.cat(products[1:], 1), basis)


def _orthonormal(columns: Tensor) -> Tensor:
    """Q of the QR decomposition of columns (g, m, k); on a GPU, where QR is not batched, by CholeskyQR2."""
    if not columns.is_cuda or columns.dtype == torch.float64:
        return torch.linalg.qr(columns).Q
    rows = columns.double().transpose(1, 2)  # in float64, almost equal columns still differ in digits
    for _ in range(2):
        factor = torch.linalg.cholesky_ex(rows @ rows.transpose(1, 2))[0]
        rows = torch.linalg.solve_triangular(factor, rows, upper=False)
    return rows.transpose(1, 2).to(columns)


def _gram_schmidt(columns: Tensor) -> Tensor:
    """Q of the QR decomposition of columns (g, m, k), by a loop in the graph, as ONNX has no QR operator."""
    done, place = torch.zeros_like(columns), torch.arange(columns.size(2), device=columns.device)
    for k in range(columns.size(2)):
        one = columns[:, :, k : k + 1]
        for _ in range(2):
            one = one - done @ (done.transpose(1, 2) @ one)
        norm = torch.linalg.vector_norm(one, dim=1, keepdim=True)
        done = done + one * (norm > 1e-6) / norm.clamp(min=1e-6) * (place == k)  # below that, noise
    return done


def pseudo_random(rows: int, columns: int, like: Tensor) -> Tensor:
    """Pseudo-random numbers of shape (rows, columns), the same on every device."""
    place = torch.arange(1.0, 1 + rows * columns, dtype=torch.float64, device=like.device)
    return place.square().remainder(2 * pi).to(like.dtype).cos().view(rows, columns)


def spread_places(n: int, count: int, device: torch.device) -> Tensor:
    """Up to ``count`` of n places: one in each of equal runs, at offsets that follow no column of the map."""
    run = torch.arange(count, device=device)[:n]
    parts = run.size(0)
    return run * n // parts + run * 2654435769 % 2**32 * (n // parts) // 2**32  # fractions of the golden ratio
