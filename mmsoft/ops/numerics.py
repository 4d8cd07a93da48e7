"""Arithmetic that keeps the digits of float32, and what changes while a graph is exported or compiled."""
import contextlib
import functools
import inspect
from typing import Any, Callable, ContextManager, Tuple, Union

import torch
from torch import Tensor

Size = Union[int, Tensor]

_HAS_CUSTOM_OP = hasattr(torch.library, 'custom_op')  # since torch 2.4
_NAMES_PRECISIONS = hasattr(torch.backends, 'fp32_precision')  # since torch 2.9, where reading allow_tf32 may raise


def at_least_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Runs ``function`` on float32 copies of float16 and bfloat16 tensors, outside autocast; float64 stays float64.

    Sums of exponentials over thousands of tokens, an inverse and an l1 norm have no meaning in half precision. The
    result has the dtype of the function's first argument. Arguments that are no tensors pass unchanged.
    """
    name = next(iter(inspect.signature(function).parameters))

    @functools.wraps(function)
    def promoted(*args: Any, **kwargs: Any) -> Tensor:
        first = args[0] if args else kwargs.get(name)
        if not isinstance(first, Tensor):
            return function(*args, **kwargs)  # raises the error that fits
        with no_autocast(first.device.type):
            out = function(*(_promote(arg) for arg in args), **{key: _promote(arg) for key, arg in kwargs.items()})
        return out.to(first.dtype)

    return promoted


def _promote(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value


def no_autocast(device_type: str) -> ContextManager:
    """Context in which autocast is off; it does nothing where autocast is off already, or unknown to torch."""
    return torch.autocast(device_type, enabled=False) if autocast_enabled(device_type) else contextlib.nullcontext()


def autocast_enabled(device_type: str) -> bool:
    """Whether autocast is on for a kind of device."""
    if hasattr(torch.amp, 'is_autocast_available'):  # since torch 2.4
        # torch.compile cannot trace is_autocast_available, which the first test avoids.
        known = device_type in ('cpu', 'cuda') or torch.amp.is_autocast_available(device_type)
        return known and torch.is_autocast_enabled(device_type)
    return device_type == 'cpu' and torch.is_autocast_cpu_enabled() or (
        device_type == 'cuda' and torch.is_autocast_enabled())


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
    if a.dtype != torch.float32 or a.device.type == 'cpu' or is_exporting() or not _allows_tf32():
        return ((a, b), )
    return split(a, b)


def _allows_tf32() -> bool:
    matmul = torch.backends.cuda.matmul
    return matmul.fp32_precision in ('tf32', 'bf16') if _NAMES_PRECISIONS else matmul.allow_tf32


def _eleven_bits(x: Tensor) -> Tensor:
    return (x.contiguous().view(torch.int32) & -2**13).view(torch.float32)


def is_exporting() -> bool:
    """Whether ``torch.export`` or ``torch.onnx.export`` is tracing.

    Autograd functions, fused kernels and choices by value have no place in an exported graph: operators that have them
    compute their plain formula instead. Before torch 2.4 the same holds for ``torch.compile``, which cannot be told
    from ``torch.export`` there.
    """
    if torch.onnx.is_in_onnx_export():
        return True
    if hasattr(torch.compiler, 'is_exporting'):  # since torch 2.7
        return torch.compiler.is_exporting()
    if not _is_tracing():
        return False
    return not _HAS_CUSTOM_OP or not torch.compiler.is_dynamo_compiling() or _dynamo_exports()


def is_compiling() -> bool:
    """Whether ``torch.compile`` is tracing; before torch 2.4 see :func:`is_exporting`."""
    return _HAS_CUSTOM_OP and torch.compiler.is_dynamo_compiling() and not is_exporting()


def _is_tracing() -> bool:
    """Whether ``torch.compile`` or ``torch.export`` is tracing."""
    return hasattr(torch.compiler, 'is_compiling') and torch.compiler.is_compiling()


def _dynamo_exports() -> bool:
    """Whether dynamo traces for ``torch.export``."""
    return torch._dynamo.symbolic_convert.InstructionTranslator.current_tx().export


# Dynamo calls this function instead of tracing it. torch.compiler.assume_constant_result does so, but imports dynamo.
_dynamo_exports._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_observed() -> bool:
    """Whether this thread's operators are being recorded or counted, by someone who would miss those of others."""
    return (_is_tracing() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0
            or torch.autograd._profiler_enabled())


def custom_operator(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Makes ``function`` an operator that ``torch.compile`` calls and does not trace.

    Tens of small products in each block would take a compiler minutes, and gain nothing. The result has the shape of
    the second argument, and shares no memory with any.
    """
    if not _HAS_CUSTOM_OP:
        return function
    operator = torch.library.custom_op(f'mmsoft::{function.__name__}', function, mutates_args=())
    operator.register_fake(lambda first, second, *_: second.new_empty(second.shape))
    return operator


def clamp_size(size: Size, maximum: int) -> Size:
    """``min(size, maximum)`` for a maximum above 1, which an exported graph computes anew for each input.

    A size is a tensor under ``torch.onnx.export``, a symbol under ``torch.export``, and a number otherwise. For ``min``
    of a symbol, torch 2.5 exports whichever is smaller in the example, hence the minimum of tensors.
    """
    if isinstance(size, Tensor):
        return size.clamp(max=maximum)
    return _new_symbol(size, maximum) if _is_export_symbol(size) else min(size, maximum)


def fresh_size_symbol(x: Tensor, dim: int) -> Tensor:
    """``x`` unchanged, but under ``torch.export`` one of its sizes is a new symbol instead of a formula.

    Each later operator on a formula of an image's sides would take the export a second.
    """
    if not _is_export_symbol(x.size(dim)):
        return x
    return x.index_select(dim, torch.arange(_new_symbol(x.size(dim)), device=x.device))


def _new_symbol(size: Size, maximum: int = 2**31) -> int:
    """A symbol read from a tensor: at least 2, because an export specialises what may be 1."""
    symbol = torch.full((), size).clamp(max=maximum).item()  # type: ignore[arg-type]
    torch._check(symbol >= 2)
    torch._check(symbol <= maximum)
    return symbol  # type: ignore[return-value]


def _is_export_symbol(size: Size) -> bool:
    """Whether a size is a symbol of ``torch.export``, not one of ``torch.compile``."""
    return isinstance(size, torch.SymInt) and _HAS_CUSTOM_OP and not torch.compiler.is_dynamo_compiling()
