r"""Products with a Gaussian kernel by PyTorch's fused attention kernels.

An attention kernel returns :math:`O = \mathrm{softmax}(S) b` and the logarithms :math:`\ell` of the sums it divides by,
so :math:`\exp(S) b = e^\ell O`. With :math:`S_{ij} = x_i \cdot y_j - \frac12 \|y_j\|^2`, the column norms given as a
mask, :math:`e^{\ell_i - \frac12 \|x_i\|^2} O_i` is the Gaussian product. Its backward pass makes :math:`e^{S - \ell}` anew: given
:math:`\frac12 \|x_i\|^2` in place of :math:`\ell` this is the Gaussian kernel, and given zeros in place of O the term
vanishes that differentiates softmax's division.

Tokens are of shape (B, h, n, d) and (B, h, m, d), values of (B, h, m, c).
"""
from typing import List, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

# Fewer blocks of 64 rows than this leave a GPU idle; the longer side is cut into parts of this many tokens at least.
_BLOCKS, _PART = 256, 1024


def _takes(name: str, argument: str) -> bool:
    operator = getattr(aten, name, None)
    return operator is not None and argument in (a.name for a in operator.default._schema.arguments)


# Since torch 2.3 and 2.1. AMD's version of the latter is another kernel with other rules.
_ON_CPU = _takes('_scaled_dot_product_flash_attention_for_cpu_backward', 'attn_mask')
_ON_CUDA = _takes('_scaled_dot_product_efficient_attention_backward', 'attn_bias') and torch.version.hip is None


def available(x: Tensor, y: Tensor, b: Tensor) -> bool:
    """Whether there is a fused kernel for these tokens and values."""
    if any(t.numel() == 0 for t in (x, y, b)):  # compilers take a size's bare truth for the size
        return False
    if x.device.type == 'cpu':
        return _ON_CPU
    # Half precision would round the kernel to 8 or 11 bits, where z in Pᵀz is large and of changing sign. The float32
    # kernel takes three TF32 products for one, whatever the process allows.
    return _ON_CUDA and x.device.type == 'cuda' and x.dtype == torch.float32


def forward(x: Tensor, y: Tensor, b: Tensor, parts: int = 0) -> Tensor:
    r""":math:`K b` with :math:`K_{ij} = \exp(-\frac12 \|x_i - y_j\|^2)`.

    Args:
        x (Tensor): Rows.
        y (Tensor): Columns.
        b (Tensor): Values at the columns.
        parts (int): Parts that the columns are cut into, side by side. Defaults to 0: as many as keep a GPU busy.

    Returns:
        Tensor: Shape (B, h, n, c).
    """
    heads, width = x.size(1), b.size(-1)
    (x, y), (b, ) = _aligned((x, y), (b, ))
    parts = parts or _parts(x, x.size(-2), y.size(-2))
    if parts > 1:
        x, y, b = _repeat(x, parts), _cut(y, parts), _cut(b, parts)
    out, log_sum = _attend(x, y, b, -_half_norms(y))
    out.mul_((log_sum - _half_norms(x)).exp_().unsqueeze(-1))
    if parts > 1:
        out = out.unflatten(1, (heads, parts)).sum(2)
    return out[..., :width]


def backward(grad: Tensor, x: Tensor, y: Tensor, b: Tensor, parts: int = 0) -> Tuple[Tensor, Tensor, Tensor]:
    r""":math:`W y`, :math:`W^\top x` and :math:`K^\top G` with :math:`W = K \odot (G b^\top)`.

    Arguments are those of :func:`forward`, but that ``parts`` are of the rows.
    """
    (heads, n, d), c = x.shape[1:], b.size(-1)
    (x, y), (b, grad) = _aligned((x, y), (b, grad))
    parts = parts or _parts(x, y.size(-2), n)
    if parts > 1:
        x, grad, y, b = _cut(x, parts), _cut(grad, parts), _repeat(y, parts), _repeat(b, parts)
    dx, dy, db = _differentiate(grad, x, y, b, -_half_norms(y), _half_norms(x))
    if parts > 1:
        dx = dx.reshape(dx.size(0), heads, -1, dx.size(-1))[:, :, :n]
        dy, db = (t.unflatten(1, (heads, parts)).sum(2) for t in (dy, db))
    return dx[..., :d], dy[..., :d], db[..., :c]


def _attend(x: Tensor, y: Tensor, b: Tensor, mask: Tensor) -> Tuple[Tensor, Tensor]:
    """Softmax attention (B, h, n, c) and its log-sum-exp (B, h, n), for a mask of (B, h, m)."""
    if x.device.type == 'cpu':
        return aten._scaled_dot_product_flash_attention_for_cpu(x, y, b, attn_mask=mask.unsqueeze(-2), scale=1.)
    out, log_sum, *_ = aten._scaled_dot_product_efficient_attention(x, y, b, _bias(mask, x), True, scale=1.)
    return out, log_sum[..., :x.size(-2)]


def _differentiate(grad: Tensor, x: Tensor, y: Tensor, b: Tensor, mask: Tensor, log_sum: Tensor) -> Tuple[Tensor, ...]:
    batch, heads, n, c = grad.shape
    if x.device.type == 'cpu':
        out = grad.new_zeros(c).expand_as(grad)
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, x, y, b, out, log_sum, 0., False, attn_mask=mask.unsqueeze(-2), scale=1.)
    # As the forward pass would return them: memory in the order (B, n, h, c), and rows in multiples of 32.
    out = grad.new_zeros(batch, n, heads, c).transpose(1, 2)
    log_sum, seed = F.pad(log_sum, (0, -n % 32), value=float('inf')), torch.zeros((), dtype=torch.long, device=x.device)
    return aten._scaled_dot_product_efficient_attention_backward(
        grad, x, y, b, _bias(mask, x), out, log_sum, seed, seed, 0., [True, True, True, False], False, scale=1.)[:3]


def _bias(mask: Tensor, x: Tensor) -> Tensor:
    """A mask of (B, h, m) for each row of x, at addresses that are multiples of 64 bytes."""
    m = mask.size(-1)
    return F.pad(mask, (0, -m % 16))[..., None, :m].expand(-1, -1, x.size(-2), -1)


def _half_norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.detach(), dim=-1).square() * 0.5


def _aligned(tokens: Sequence[Tensor], values: Sequence[Tensor]) -> Tuple[List[Tensor], List[Tensor]]:
    """The same width for all, filled up with zeros, on a GPU a multiple of 4, and channels next to each other.

    Heads are the second dimension of tokens, but the third of values and gradients, which linear layers make: neither
    is copied.
    """
    width = max(t.size(-1) for t in (*tokens, *values))
    width += 0 if tokens[0].device.type == 'cpu' else -width % 4
    tokens, values = ([F.pad(t, (0, width - t.size(-1))) if t.size(-1) < width else t for t in group]
                      for group in (tokens, values))
    return [t.contiguous() for t in tokens], [t.transpose(1, 2).contiguous().transpose(1, 2) for t in values]


def _parts(x: Tensor, short: int, long: int) -> int:
    """Parts of ``long`` tokens that keep a GPU busy which has a block for 64 of the ``short`` side."""
    if x.device.type == 'cpu':
        return 1
    blocks = x.size(0) * x.size(1) * -(-short // 64)
    return max(1, min(-(-_BLOCKS // blocks), long // _PART))


def _cut(x: Tensor, parts: int) -> Tensor:
    """Tokens (B, h, n, d) in parts, as more heads, filled up with zeros: (B, h · parts, ⌈n / parts⌉, d)."""
    missing = -x.size(-2) % parts
    x = F.pad(x, (0, 0, 0, missing)) if missing else x
    return x.unflatten(-2, (parts, -1)).flatten(1, 2)


def _repeat(x: Tensor, parts: int) -> Tensor:
    return x.unsqueeze(2).expand(-1, -1, parts, -1, -1).flatten(1, 2)
