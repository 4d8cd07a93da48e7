r"""Gaussian products computed by PyTorch's fused attention kernels, tested with torch up to 2.13.

For scores S_ij = x_i·y_j - ½‖y_j‖² an attention kernel returns O = softmax(S) b and the logsumexp ℓ of each row of S,
so exp(ℓ_i - ½‖x_i‖²) O_i is the Gaussian product. Its backward pass computes exp(S - ℓ). With ½‖x_i‖² in place of ℓ,
this is the Gaussian kernel; with zeros in place of O, the derivative of softmax's division vanishes.

Tokens x and y have shapes (B, h, n, d) and (B, h, m, d), values b (B, h, m, c).
"""

import functools
import os
import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .numerics import exact_product

aten = torch.ops.aten
# With fewer blocks of 64 rows, a GPU idles; the longer side is then split into parts of at least _PART tokens.
_BLOCKS, _PART = 256, 1024


def _takes(name: str, argument: str) -> bool:
    operator = getattr(aten, name, None)
    return operator is not None and argument in (a.name for a in operator.default._schema.arguments)


# The kernel for CPUs exists since torch 2.3, CUDA's since 2.1. AMD's version of the latter has other rules.
_ON_CPU = _takes('_scaled_dot_product_flash_attention_for_cpu_backward', 'attn_mask')
_ON_CUDA = _takes('_scaled_dot_product_efficient_attention_backward', 'attn_bias') and torch.version.hip is None


def serves(x: Tensor, y: Tensor, b: Tensor) -> bool:
    """Whether PyTorch has a fused kernel for these tokens and values, the process allows it, and it passes a check."""
    kind = x.device.type
    # Half precision would round the kernel to 8 or 11 bits, but z in Pᵀz has large entries of both signs. CUDA's kernel
    # computes each float32 product as three TF32 products, whatever the process allows.
    exists = _ON_CPU if kind == 'cpu' else _ON_CUDA and kind == 'cuda' and x.dtype == torch.float32
    allowed = kind == 'cpu' or torch.backends.cuda.mem_efficient_sdp_enabled()
    if not (exists and allowed and all(t.numel() for t in (x, y, b))) or os.environ.get('MMSOFT_GAUSSIAN') == 'tiled':
        return False
    in_graph = torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0
    return in_graph or (kind == 'cuda' and torch.cuda.is_current_stream_capturing()) or _works(x.device, x.dtype)


@functools.cache
def _works(device: torch.device, dtype: torch.dtype) -> bool:
    """Checks the kernel, forward and backward, against the formula on a small problem; waits for the device."""
    x, y, b, grad = (
        torch.arange(float(n * 16), dtype=dtype, device=device).mul(step).sin().view(1, 2, n, 8)
        for n, step in ((70, 1), (37, 2), (37, 3), (70, 4))
    )
    kernel = (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1).mul(-0.5).exp()
    weight = kernel * exact_product(grad, b.mT)
    pairs = (kernel, b), (weight, y), (weight.mT, x), (kernel.mT, grad)
    try:
        found = zip((forward(x, y, b), *backward(grad, x, y, b)), (exact_product(*pair) for pair in pairs))
        errors = [float((got - want).abs().max() / want.abs().max()) for got, want in found]
        if all(error < 1e-4 for error in errors):
            return True
        problem = f'relative errors {errors}'
    except (RuntimeError, TypeError) as exception:
        problem = str(exception)
    warnings.warn(
        f'The fused attention kernel of torch {torch.__version__} for {dtype} on {device} failed the self-check of '
        f'mmsoft: {problem}. Gaussian products are computed in tiles instead.'
    )
    return False


def forward(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    r""":math:`K b` of shape (B, h, n, c) with :math:`K_{ij} = \exp(-\frac12 \|x_i - y_j\|^2)`."""
    heads, n, width = x.size(1), x.size(2), b.size(-1)
    (x, y), (b,) = _aligned((x, y), (b,))
    if (parts := _parts(x, n, y.size(2))) > 1:
        x, y, b = x.repeat_interleave(parts, 1), _cut(y, parts), _cut(b, parts)
    if x.device.type == 'cpu':
        out, log_sum = aten._scaled_dot_product_flash_attention_for_cpu(x, y, b, attn_mask=_mask(x, y), scale=1.0)
    else:
        out, log_sum = aten._scaled_dot_product_efficient_attention(x, y, b, _mask(x, y), True, scale=1.0)[:2]
    out.mul_((log_sum[..., :n] - _half_norms(x)).exp_().unsqueeze(-1))
    if parts > 1:
        out = out.unflatten(1, (heads, parts)).sum(2)
    return out[..., :width]


def backward(grad: Tensor, x: Tensor, y: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r""":math:`W y`, :math:`W^\top x` and :math:`K^\top G` with :math:`W = K \odot (G b^\top)`."""
    (heads, n, d), c = x.shape[1:], b.size(-1)
    (x, y), (b, grad) = _aligned((x, y), (b, grad))
    if (parts := _parts(x, y.size(2), n)) > 1:
        x, grad, y, b = _cut(x, parts), _cut(grad, parts), y.repeat_interleave(parts, 1), b.repeat_interleave(parts, 1)
    mask, log_sum = _mask(x, y), _half_norms(x)
    if x.device.type == 'cpu':
        out = grad.new_zeros(grad.size(-1)).expand_as(grad)
        dx, dy, db = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, x, y, b, out, log_sum, 0.0, False, attn_mask=mask, scale=1.0
        )
    else:
        # The layout of the forward pass: `out` has the memory order (B, n, h, c), `log_sum` a multiple of 32 rows.
        out = torch.zeros_like(grad.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
        log_sum = F.pad(log_sum, (0, -x.size(2) % 32), value=float('inf'))
        seed, wanted = torch.zeros((), dtype=torch.long, device=x.device), [True, True, True, False]
        dx, dy, db, _ = aten._scaled_dot_product_efficient_attention_backward(
            grad, x, y, b, mask, out, log_sum, seed, seed, 0.0, wanted, False, scale=1.0
        )
    if parts > 1:
        dx = dx.reshape(dx.size(0), heads, -1, dx.size(-1))[:, :, :n]
        dy, db = (t.unflatten(1, (heads, parts)).sum(2) for t in (dy, db))
    return dx[..., :d], dy[..., :d], db[..., :c]


def _mask(x: Tensor, y: Tensor) -> Tensor:
    """The bias -½‖y‖² of the scores; on a GPU expanded to the rows of x, each at a multiple of 64 bytes."""
    m, mask = y.size(-2), -_half_norms(y).unsqueeze(-2)
    return mask if x.device.type == 'cpu' else F.pad(mask, (0, -m % 16))[..., :m].expand(-1, -1, x.size(-2), -1)


def _half_norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1).square() * 0.5


def _aligned(tokens: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Pads all tensors with zeros to one width, on a GPU a multiple of 4, and makes the channels contiguous.

    In memory, tokens are ordered (B, h, n, d); values and gradients are ordered (B, n, h, c).
    """
    width = max(t.size(-1) for t in (*tokens, *values))
    width += 0 if tokens[0].device.type == 'cpu' else -width % 4
    tokens, values = (
        [F.pad(t, (0, width - t.size(-1))) if t.size(-1) < width else t for t in group] for group in (tokens, values)
    )
    return [t.contiguous() for t in tokens], [t.transpose(1, 2).contiguous().transpose(1, 2) for t in values]


def _parts(x: Tensor, short: int, long: int) -> int:
    """Into how many parts to split the ``long`` side, for a GPU that runs one block per 64 ``short`` tokens."""
    if x.device.type == 'cpu':
        return 1
    blocks = x.size(0) * x.size(1) * -(-short // 64)
    return max(1, min(-(-_BLOCKS // blocks), long // _PART))


def _cut(x: Tensor, parts: int) -> Tensor:
    """Splits tokens (B, h, n, d) into parts that act as heads, zero-padded: (B, h · parts, ⌈n / parts⌉, d)."""
    missing = -x.size(-2) % parts
    x = F.pad(x, (0, 0, 0, missing)) if missing else x
    return x.unflatten(-2, (parts, -1)).flatten(1, 2)
