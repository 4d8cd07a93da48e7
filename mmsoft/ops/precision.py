"""Where half precision would lose the meaning of a result."""
import contextlib
import functools
import inspect
from typing import Callable, Tuple

import torch
from torch import Tensor

from .tracing import exporting

_NAMES_PRECISIONS = hasattr(torch.backends, 'fp32_precision')  # since torch 2.9, where reading allow_tf32 may raise


def at_least_float32(function: Callable) -> Callable:
    """Runs ``function`` on float32 copies of float16 and bfloat16 tensors, outside autocast; float64 stays float64.

    Sums of exponentials over thousands of tokens, an inverse and an l1 norm have no meaning in half precision. The
    result comes back in the dtype of the function's first argument. Arguments that are no tensors pass unchanged.
    """
    name = next(iter(inspect.signature(function).parameters))

    @functools.wraps(function)
    def promoted(*args, **kwargs):
        first = args[0] if args else kwargs.get(name)
        if not isinstance(first, Tensor):
            return function(*args, **kwargs)  # which knows best what is wrong
        with no_autocast(first.device.type):
            out = function(*(_promote(arg) for arg in args), **{key: _promote(arg) for key, arg in kwargs.items()})
        return out.to(first.dtype)

    return promoted


def no_autocast(device_type: str):
    """Context in which autocast is off; where it is off already, or unknown to torch, one that does nothing."""
    if autocasts(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


def exact_product(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product with all digits of float32, also where the process lets a GPU take TF32 for float32.

    The flag that would forbid TF32 belongs to the whole process and its threads, so it is read but left alone. Where it
    allows TF32, each factor is split into what TF32 holds and a small rest; of the four products the one of the rests
    is below float32's resolution. Not differentiable on a GPU: for use within autograd functions.

    Args:
        a (Tensor): Shape (..., n, k).
        b (Tensor): Shape (..., k, m).

    Returns:
        Tensor: Shape (..., n, m).
    """
    first, *others = _factors(a, b)
    return sum((left @ right for left, right in others), first[0] @ first[1])


def add_product(c: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta · c + alpha · a b``, one launch where :func:`exact_product` takes one: (g, n, m), (g, n, k), (g, k, m)."""
    for left, right in _factors(a, b):
        c, beta = torch.baddbmm(c, left, right, beta=beta, alpha=alpha), 1
    return c


def add_product_(c: Tensor, a: Tensor, b: Tensor, alpha: float = 1) -> Tensor:
    """Adds ``alpha · a b`` to ``c``, as :func:`add_product`."""
    for left, right in _factors(a, b):
        c.baddbmm_(left, right, alpha=alpha)
    return c


def split(a: Tensor, b: Tensor) -> Tuple[Tuple[Tensor, Tensor], ...]:
    """Pairs whose products add up to float32's, and may each be rounded to TF32 (11 bits)."""
    high_a, high_b = _eleven_bits(a), _eleven_bits(b)
    return (high_a, high_b), (high_a, b - high_b), (a - high_a, high_b)


def _factors(a: Tensor, b: Tensor) -> Tuple[Tuple[Tensor, Tensor], ...]:
    if a.dtype != torch.float32 or a.device.type == 'cpu' or exporting() or not _allows_tf32():
        return ((a, b), )
    return split(a, b)


def _allows_tf32() -> bool:
    matmul = torch.backends.cuda.matmul
    return matmul.fp32_precision in ('tf32', 'bf16') if _NAMES_PRECISIONS else matmul.allow_tf32


def _eleven_bits(x: Tensor) -> Tensor:
    return (x.contiguous().view(torch.int32) & -2**13).view(torch.float32)


def autocasts(device_type: str) -> bool:
    """Whether autocast is on for a kind of device."""
    if hasattr(torch.amp, 'is_autocast_available'):  # since torch 2.4
        # Compilers do not follow the question whether there is autocast, which is asked where they need not.
        known = device_type in ('cpu', 'cuda') or torch.amp.is_autocast_available(device_type)
        return known and torch.is_autocast_enabled(device_type)
    return device_type == 'cpu' and torch.is_autocast_cpu_enabled() or (
        device_type == 'cuda' and torch.is_autocast_enabled())


def _promote(value):
    if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value
