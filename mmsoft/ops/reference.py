"""The attentions as the papers write them: dense, a line a formula, in whatever dtype comes in. For reading and tests."""
import torch
from torch import Tensor

from .gaussian import gaussian_kernel
from .inverse import newton_inverse as iterate


def newton_inverse(matrix: Tensor, alpha: Tensor, iterations: int = 20) -> Tensor:
    """Newton–Raphson inverse of (..., m, m), differentiated as if it were exact (2207.03341, Eq. 16)."""
    return _NewtonInverse.apply(matrix, alpha, iterations)


class _NewtonInverse(torch.autograd.Function):

    @staticmethod
    def forward(ctx, matrix: Tensor, alpha: Tensor, iterations: int) -> Tensor:
        inverse = iterate(matrix, alpha, iterations)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad: Tensor):
        inverse, = ctx.saved_tensors
        return -inverse.mT @ grad @ inverse.mT, None, None


def soft_attention(q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int = 20) -> Tensor:
    """SOFT on (B, h, n, d), (B, h, m, d), (B, h, n, c): (B, h, n, c)."""
    a, p = gaussian_kernel(bottleneck, bottleneck), gaussian_kernel(bottleneck, q)
    alpha = 0.9 * 2 / a.abs().sum(-1).amax(-1)[..., None, None]**2
    inverse = newton_inverse(a + 0.01 * torch.eye(a.size(-1)).to(a), alpha, iterations)
    return (p.transpose(-2, -1) @ inverse) @ (p @ v)


def soft_norm_attention(q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int = 20) -> Tensor:
    """SOFT-Norm, one image after the other, on (B, h, n, d), (B, h, m, d), (B, h, n, c): (B, h, n, c)."""
    a, p = gaussian_kernel(bottleneck, bottleneck), gaussian_kernel(bottleneck, q)
    inverses = []
    for image in a:
        alpha = 2 / image.abs().sum(-1).max()**2
        for _ in range(10):
            if (torch.eye(a.size(-1)).to(a) - alpha * image @ image).abs().sum(-1).max() <= 1.01:
                break
            alpha = alpha / 2
        inverses.append(newton_inverse(image, alpha, iterations))
    scale = torch.diag_embed(a.sum(-1)**-0.5)
    return (p.transpose(-2, -1) @ (scale @ torch.stack(inverses) @ scale)) @ (p @ v)


def l1_attention(q: Tensor, k: Tensor, v: Tensor, eps: float = 1e-12) -> Tensor:
    """SimA on (B, h, n, d), (B, h, m, d), (B, h, m, c): (B, h, n, c)."""
    q = q / q.abs().sum(-2, keepdim=True).clamp(min=eps)
    k = k / k.abs().sum(-2, keepdim=True).clamp(min=eps)
    return (q @ k.transpose(-2, -1)) @ v
