"""The attentions as the papers write them, dense, a line a formula. Nothing here comes from mmsoft."""

import torch
from torch import Tensor


def gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    """Gaussian kernel (..., n, m) of the differences themselves."""
    return torch.exp(-0.5 * torch.cdist(x, y, compute_mode='donot_use_mm_for_euclid_dist') ** 2)


def gaussian_product(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    return gaussian_kernel(x, y) @ b


def newton_inverse(matrix: Tensor, alpha: Tensor, iterations: int = 20) -> Tensor:
    """Newton–Raphson inverse whose differential is that of the inverse, -V dM V (SOFT, Eq. 16)."""
    fixed = matrix.detach()
    inverse = alpha * fixed
    for _ in range(iterations):
        inverse = 2 * inverse - inverse @ fixed @ inverse
    return inverse - inverse @ (matrix - fixed) @ inverse


def soft_alpha(kernel: Tensor) -> Tensor:
    return 0.9 * 2 / kernel.detach().sum(-1).amax(-1)[..., None, None] ** 2


def soft_norm_alpha(kernel: Tensor) -> Tensor:
    """For one image's matrices, (h, m, m)."""
    kernel = kernel.detach()
    alpha = 2 / kernel.sum(-1).max() ** 2
    for _ in range(10):
        if (torch.eye(kernel.size(-1)).to(kernel) - alpha * kernel @ kernel).abs().sum(-1).max() <= 1.01:
            break
        alpha = alpha / 2
    return alpha


def soft_attention(q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int = 20) -> Tensor:
    """SOFT on (B, h, n, d), (B, h, m, d), (B, h, n, c): (B, h, n, c)."""
    a, p = gaussian_kernel(bottleneck, bottleneck), gaussian_kernel(bottleneck, q)
    inverse = newton_inverse(a + 0.01 * torch.eye(a.size(-1)).to(a), soft_alpha(a), iterations)
    return (p.transpose(-2, -1) @ inverse) @ (p @ v)


def soft_norm_attention(q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int = 20) -> Tensor:
    """SOFT-Norm, one image after the other, on (B, h, n, d), (B, h, m, d), (B, h, n, c): (B, h, n, c)."""
    a, p = gaussian_kernel(bottleneck, bottleneck), gaussian_kernel(bottleneck, q)
    inverse = torch.stack([newton_inverse(image, soft_norm_alpha(image), iterations) for image in a])
    scale = torch.diag_embed(a.sum(-1) ** -0.5)
    return (p.transpose(-2, -1) @ (scale @ inverse @ scale)) @ (p @ v)


def l1_attention(q: Tensor, k: Tensor, v: Tensor, eps: float = 1e-12) -> Tensor:
    """SimA on (B, h, n, d), (B, h, m, d), (B, h, m, c): (B, h, n, c)."""
    q, k = (t / t.abs().sum(-2, keepdim=True).clamp(min=eps) for t in (q, k))
    return (q @ k.transpose(-2, -1)) @ v
