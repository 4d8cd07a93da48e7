"""SimA's attention: queries and keys, normalised over the tokens, times values (2206.08898, Sec. 2.2)."""

from typing import Optional

import torch
from torch import Tensor

from mmsoft.utils import check_choice

from .numerics import HALF, at_least_float32, autocast_enabled, is_exporting


def l1_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor] = None,
    p: Optional[int] = 1,
    eps: float = 1e-12,
    order: str = 'auto',
) -> Tensor:
    r"""SimA, :math:`\hat q \, \hat k^\top v` with :math:`\hat q = q / \|q\|_1`, and k alike (2206.08898, Sec. 2.2).

    Each channel of a head is normalised over the head's tokens. Both norms scale the same d channels, so they are
    multiplied into the smaller factor and no normalised copy of q or k is made.

    Normalised queries and keys are of order 1/n, which float16 holds as subnormal numbers and bfloat16 to 3e-3. So
    unlike the paper's (2206.08898, Sec. 1), this one computes in float32; under autocast its result is float32.

    Args:
        q (Tensor): Queries, shape (B, h, n, d).
        k (Tensor): Keys, shape (B, h, m, d).
        v (Tensor): Values, shape (B, h, m, c).
        mask (Tensor, optional): True for tokens that take part, bool of shape (B, n), for n = m. The others enter
            neither norm nor product, and their output is zero. Defaults to None: all take part.
        p (int, optional): Order of the norm. 2, or None (no norm), are ablations (2206.08898, Sec. 4.6). Defaults to 1.
        eps (float): Lower bound of the norms before division. Defaults to 1e-12.
        order (str): ``'tokens'`` is (q̂k̂ᵀ)v at cost n·m·(d + c), ``'channels'`` is q̂(k̂ᵀv) at (n + m)·d·c, ``'auto'``
            the cheaper (tokens if n < d, for n = m and d = c); exported, it is channels. Others: OptionError.

    Returns:
        Tensor: Shape (B, h, n, c), dtype of ``q``, or float32 under autocast. Computed in float32 at least.
    """
    check_choice('order', order, ('auto', 'tokens', 'channels'))
    return _attend(_wide(q), k, v, mask, p, eps, order, False)


def l1_class_attention(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None, p: Optional[int] = 1) -> Tensor:
    """SimA with the first token as the only query, attending to all tokens (published with an eps of 1e-6).

    Arguments are those of :func:`l1_attention`; the norm is taken over all queries. The result is (B, h, 1, c).
    """
    return _attend(_wide(q), k, v, mask, p, 1e-6, 'tokens', True)


@at_least_float32
def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], p: Optional[int], eps: float, order: str, first: bool
) -> Tensor:
    """:func:`l1_attention`, or its output for the ``first`` query alone; the norm is taken over all queries."""
    if mask is not None:
        q, k = (tokens.masked_fill(~mask[:, None, :, None], 0) for tokens in (q, k))
    scale = _norm(q, p, eps).reciprocal() * _norm(k, p, eps).reciprocal()  # 1 / product may overflow in gradients
    q = q[..., :1, :] if first else q
    if order == 'auto' and not is_exporting():
        (n, d), (m, c) = q.shape[-2:], v.shape[-2:]
        order = 'tokens' if n * m * (d + c) < (n + m) * d * c else 'channels'
    if order == 'tokens':
        return ((q * scale) @ k.transpose(2, 3)) @ v
    return q @ (scale.transpose(2, 3) * (k.transpose(2, 3) @ v))


def _wide(q: Tensor) -> Tensor:
    """Casts queries to the dtype of the result."""
    return q.float() if autocast_enabled(q.device.type) and q.dtype in HALF else q


def _norm(x: Tensor, p: Optional[int], eps: float) -> Tensor:
    if p is None:
        return x.new_ones(1, 1, 1, 1)
    # On a CPU, vector_norm over any dimension but the last takes several times as long as a sum.
    norm = x.abs().sum(-2, keepdim=True) if p == 1 else torch.linalg.vector_norm(x, p, dim=-2, keepdim=True)
    return norm.clamp(min=eps)
