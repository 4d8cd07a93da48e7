"""Precision of the operators' arithmetic, and checks of whether a graph is being exported or compiled."""

import contextlib
import functools
import inspect
from typing import Any, Callable, ContextManager, Union

import torch
from torch import Tensor

Size = Union[int, Tensor]

HALF = (torch.float16, torch.bfloat16)
_HAS_CUSTOM_OP = hasattr(torch.library, 'custom_op')  # since torch 2.4


def at_least_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Runs ``function`` outside autocast, on float32 copies of float16 and bfloat16 tensors; float64 stays float64.

    Sums of many exponentials, an inverse and an l1 norm have no meaning in half precision. If the process lets a CPU
    round float32 products (``torch.set_float32_matmul_precision('medium')``), ``function`` runs in float64, in about
    twice the time. The result has the dtype of the first argument.
    """
    name = next(iter(inspect.signature(function).parameters))

    @functools.wraps(function)
    def promoted(*args: Any, **kwargs: Any) -> Tensor:
        first = args[0] if args else kwargs.get(name)
        if not isinstance(first, Tensor):
            return function(*args, **kwargs)  # raises its own error
        rounds = first.device.type == 'cpu' and not is_exporting() and _rounds_float32('cpu')
        narrow, wide = ((*HALF, torch.float32), torch.float64) if rounds else (HALF, torch.float32)

        def promote(value: Any) -> Any:
            return value.to(wide) if isinstance(value, Tensor) and value.dtype in narrow else value

        with no_autocast(first.device.type):
            out = function(*map(promote, args), **{key: promote(value) for key, value in kwargs.items()})
        return out.to(first.dtype)

    return promoted


def no_autocast(device_type: str) -> ContextManager:
    """Context in which autocast is off; it does nothing where autocast is off already, or unknown to torch."""
    return torch.autocast(device_type, enabled=False) if autocast_enabled(device_type) else contextlib.nullcontext()


def autocast_enabled(device_type: str) -> bool:
    """Whether autocast is on for a kind of device."""
    if not hasattr(torch.amp, 'is_autocast_available'):  # since torch 2.4; torch.compile cannot trace it
        return {'cpu': torch.is_autocast_cpu_enabled, 'cuda': torch.is_autocast_enabled}.get(device_type, bool)()
    known = device_type in ('cpu', 'cuda') or torch.amp.is_autocast_available(device_type)
    return known and torch.is_autocast_enabled(device_type)


def exact_product(a: Tensor, b: Tensor) -> Tensor:
    """``a b`` of (..., n, k) and (..., k, m) with all digits of float32, even if the process allows TF32 on a GPU.

    On a CPU, call it inside :func:`at_least_float32`. Where TF32 is allowed, its derivative is rounded to TF32.
    """
    product = torch.bmm if a.dim() == b.dim() == 3 else torch.matmul  # matmul makes four more calls
    first, *others = _factors(a, b)
    return sum((product(left, right) for left, right in others), product(*first))


def add_product(c: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta · c + alpha · a b`` of (g, n, m), (g, n, k), (g, k, m), in as many launches as :func:`exact_product`."""
    for left, right in _factors(a, b):
        c, beta = torch.baddbmm(c, left, right, beta=beta, alpha=alpha), 1
    return c


def as_operator(name: str, function: Callable, fake: Callable[..., Any]) -> Any:
    """``function`` as one operator that compilers do not trace; ``fake`` returns empty tensors of the same shapes."""

    @functools.wraps(function)
    def contiguous(*args: Any) -> Any:
        with torch.no_grad():
            out = function(*args)
        return out.contiguous() if isinstance(out, Tensor) else tuple(one.contiguous() for one in out)

    if not _HAS_CUSTOM_OP:
        return contiguous
    operator = torch.library.custom_op(f'mmsoft::{name}', contiguous, mutates_args=())
    operator.register_fake(fake)
    return operator


def at_a_time(elements: int, each: int, count: int) -> int:
    """How many of ``count`` matrices of ``each`` elements fit into ``elements``: all, an even number, one or none."""
    some = min(elements // max(1, each), count)
    return some - some % 2 if 1 < some < count else some


def tf32_parts(a: Tensor, b: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """Pairs of leading bits and rests whose products add up to ``a b``, even if TF32 keeps 11 bits of each factor."""
    high_a, high_b = ((t.contiguous().view(torch.int32) & -(2**13)).view(torch.float32) for t in (a, b))
    return (high_a, high_b), (high_a, b - high_b), (a - high_a, high_b)


def _factors(a: Tensor, b: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    rounds = a.dtype == torch.float32 and a.device.type != 'cpu' and not is_exporting() and _rounds_float32('cuda')
    return tf32_parts(a, b) if rounds else ((a, b),)


def _rounds_float32(device_type: str) -> bool:
    """Whether the process lets matrix products on ``'cpu'`` or ``'cuda'`` round float32 to TF32 or bfloat16."""
    if hasattr(torch.backends, 'fp32_precision'):  # since torch 2.9, where the other getters may raise
        backend = torch.backends.mkldnn if device_type == 'cpu' else torch.backends.cuda
        return backend.matmul.fp32_precision in ('tf32', 'bf16')
    if device_type == 'cpu':
        return torch.get_float32_matmul_precision() == 'medium'
    return torch.backends.cuda.matmul.allow_tf32


def is_exporting() -> bool:
    """Whether ``torch.export`` or ``torch.onnx.export`` is tracing.

    An exported graph has plain formulas in place of autograd functions, fused kernels and branches that depend on
    values. So has ``torch.compile`` before torch 2.4, where it cannot be told apart from ``torch.export``.
    """
    if torch.onnx.is_in_onnx_export():
        return True
    if hasattr(torch.compiler, 'is_exporting'):  # since torch 2.7
        return torch.compiler.is_exporting()
    compiles = _HAS_CUSTOM_OP and torch.compiler.is_dynamo_compiling() and not _dynamo_exports()
    return hasattr(torch.compiler, 'is_compiling') and torch.compiler.is_compiling() and not compiles


def is_recording() -> bool:
    """Whether a graph without branches on sizes is recorded: :func:`is_exporting`, or ``torch.jit.trace``."""
    return torch.jit.is_tracing() or is_exporting()


def is_compiling() -> bool:
    """Whether ``torch.compile`` is tracing; before torch 2.4 see :func:`is_exporting`."""
    return _HAS_CUSTOM_OP and torch.compiler.is_dynamo_compiling() and not is_exporting()


def _dynamo_exports() -> bool:
    """Whether dynamo traces for ``torch.export``."""
    return torch._dynamo.symbolic_convert.InstructionTranslator.current_tx().export


# Dynamo calls these instead of tracing them; torch.compiler.assume_constant_result does the same, but imports dynamo.
for _function in (_rounds_float32, _dynamo_exports):  # their names must begin with an underscore
    _function._dynamo_marked_constant = True  # type: ignore[union-attr]


def clamp_size(size: Size, maximum: int = 2**31) -> Size:
    """``min(size, maximum)``, which an exported graph computes for each input.

    A size is a tensor under ``torch.onnx.export``, a symbol of at least 2 under ``torch.export`` (which would replace
    ``min`` by the smaller argument in the example), and a number otherwise.
    """
    if isinstance(size, Tensor):
        return size.clamp(max=maximum)
    if not _is_export_symbol(size):
        return min(size, maximum)
    symbol = torch.full((), size).clamp(max=maximum).item()
    torch._check(symbol >= 2)
    torch._check(symbol <= maximum)
    return symbol  # type: ignore[return-value]


def fresh_size_symbol(x: Tensor, dim: int) -> Tensor:
    """Gives one size of ``x`` a new symbol: ``torch.export`` takes a second per operator on a size with a formula."""
    if _is_export_symbol(x.size(dim)):
        x = x.index_select(dim, torch.arange(clamp_size(x.size(dim)), device=x.device))  # type: ignore[arg-type]
    return x


def _is_export_symbol(size: Size) -> bool:
    return isinstance(size, torch.SymInt) and _HAS_CUSTOM_OP and not torch.compiler.is_dynamo_compiling()
