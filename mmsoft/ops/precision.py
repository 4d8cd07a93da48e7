"""Where half precision would lose the meaning of a result."""
import contextlib
import functools

import torch
from torch import Tensor

_AUTOCAST_DEVICES = ('cpu', 'cuda', 'xpu')


def at_least_float32(function):
    """Runs ``function`` on float32 copies of float16 and bfloat16 tensors, outside autocast; float64 stays float64.

    Sums of exponentials over thousands of tokens, an inverse and an l1 norm have no meaning in half precision. The
    result comes back in the dtype of the first tensor argument.
    """

    @functools.wraps(function)
    def promoted(first: Tensor, *args, **kwargs):
        with no_autocast(first.device.type):
            out = function(_promote(first), *(_promote(arg) for arg in args),
                           **{name: _promote(arg) for name, arg in kwargs.items()})
        return out.to(first.dtype)

    return promoted


def no_autocast(device_type: str):
    """Context in which autocast is off, also on devices that torch has no autocast for; on CUDA, TF32 is off as well.

    The squared norms that are folded into a Gaussian kernel's exponent nearly cancel, and Newton's steps amplify what
    they start with: neither has digits to spare.
    """
    autocast_off = torch.autocast(device_type if device_type in _AUTOCAST_DEVICES else 'cpu', enabled=False)
    return _without_tf32(autocast_off) if device_type == 'cuda' else autocast_off


@contextlib.contextmanager
def _without_tf32(context):
    matmul = torch.backends.cuda.matmul
    allowed, matmul.allow_tf32 = matmul.allow_tf32, False
    try:
        with context:
            yield
    finally:
        matmul.allow_tf32 = allowed


def _promote(value):
    if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value
