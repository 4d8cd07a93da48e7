"""Holds a function against another in value and in all gradients."""

from typing import Callable

import torch
from torch import Tensor


def value_and_grads(function: Callable, *inputs: Tensor, dtype: torch.dtype = None) -> tuple[Tensor, ...]:
    """Value and every gradient in float64, computed in ``dtype``, for a fixed gradient of the value."""
    inputs = [t.to(dtype or t.dtype).detach().requires_grad_() for t in inputs]
    out = function(*inputs)
    # Rounded to bfloat16, so that the same gradient flows in every dtype.
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(out)
    return tuple(t.detach().cpu().double() for t in (out, *torch.autograd.grad(out, inputs, grad)))


def error(got, want) -> tuple[float, ...]:
    """Largest absolute error of each tensor, relative to the largest entry of what is wanted."""
    assert [t.shape for t in got] == [t.shape for t in want]
    assert all(t.isfinite().all() for t in got)
    return tuple(((a - b).abs().max() / b.abs().max().clamp(min=1e-6)).item() for a, b in zip(got, want))


def tokens(*shape: int, spread: float = 1.0, seed: int = 0) -> Tensor:
    """Tokens of shape (..., d) at squared distances of about 2 · spread² from each other."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    center = torch.randn(shape[-1], generator=generator, dtype=torch.float64)
    return (center + spread * noise) / shape[-1] ** 0.5


def shape_id(value) -> str:
    """Test id of a shape or of any other parameter."""
    if isinstance(value, tuple):
        return 'x'.join(map(str, value))
    return str(value).replace('torch.', '')
