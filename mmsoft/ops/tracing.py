"""Whether operators are being recorded, for a graph that other programs shall run, or by whoever counts them."""
from typing import Callable, Union

import torch
from torch import Tensor

_HAS_OPERATORS = hasattr(torch.library, 'custom_op')  # since torch 2.4
Size = Union[int, Tensor]


def exporting() -> bool:
    """Whether operations are being recorded by ``torch.export`` or ``torch.onnx.export``.

    Autograd functions, fused kernels and choices by value have no place in such a graph; every operator of
    :mod:`mmsoft.ops` that has them writes its plain formula instead. Before torch 2.4 a recording does not know whether
    it is made by ``torch.export`` or by ``torch.compile``, and both get the formula.
    """
    if torch.onnx.is_in_onnx_export():
        return True
    if hasattr(getattr(torch, 'compiler', None), 'is_exporting'):  # since torch 2.7
        return torch.compiler.is_exporting()
    return _recording() and (not (_HAS_OPERATORS and torch.compiler.is_dynamo_compiling()) or _dynamo_exports())


def _recording() -> bool:
    """Whether ``torch.compile`` or ``torch.export`` is at work, which torch tells since 2.1."""
    return hasattr(getattr(torch, 'compiler', None), 'is_compiling') and torch.compiler.is_compiling()


def _dynamo_exports() -> bool:
    """Whether what dynamo records is for ``torch.export``; it runs this function instead of recording it."""
    return torch._dynamo.symbolic_convert.InstructionTranslator.current_tx().export


_dynamo_exports._dynamo_marked_constant = True  # as torch.compiler.assume_constant_result does, which imports dynamo


def compiling() -> bool:
    """Whether operations are being recorded by ``torch.compile``, of a torch that has operators made in Python."""
    return _HAS_OPERATORS and torch.compiler.is_dynamo_compiling() and not exporting()


def opaque(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An operator that compilers call and do not look into; its result is like the second argument, and no alias.

    What is written out by tens of small products in each block would take a compiler minutes, and gain nothing.
    """
    if not _HAS_OPERATORS:
        return function
    operator = torch.library.custom_op(f'mmsoft::{function.__name__}', function, mutates_args=())
    operator.register_fake(lambda first, second, *_: second.new_empty(second.shape))
    return operator


def watched() -> bool:
    """Whether this thread's operators are being recorded or counted, by someone who would miss those of others."""
    return (_recording() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0
            or torch.autograd._profiler_enabled())


def least(a: Size, b: int) -> Size:
    """``min`` of a size and a number above 1, worked out anew in each run of a graph.

    A size is a tensor to TorchScript's recorder, a symbol to that of ``torch.export``, and a number otherwise. Of
    symbols torch 2.5 takes the one that is less in the example, whatever comes later, hence a minimum of tensors.
    """
    if isinstance(a, Tensor):
        return a.clamp(max=b)
    return _alone(a, b) if _is_symbol(a) else min(a, b)


def rename_size(x: Tensor, dim: int) -> Tensor:
    """A tensor as it is, one of whose sizes is a symbol of its own to ``torch.export`` instead of a formula.

    Whatever is computed with a formula in the sides of an image takes the recorder a second an operator.
    """
    if not _is_symbol(x.size(dim)):
        return x
    return x.index_select(dim, torch.arange(_alone(x.size(dim)), device=x.device))


def _alone(a: torch.SymInt, most: int = 2**31) -> torch.SymInt:
    """A symbol that is read from a tensor: at least 2, as no recorder can reason of what may be 1."""
    size = torch.full((), a).clamp(max=most).item()
    torch._check(size >= 2)
    torch._check(size <= most)
    return size


def _is_symbol(a: Size) -> bool:
    """Whether a size is one that values may stand for, as with ``torch.export`` and not with ``torch.compile``."""
    compiler = getattr(torch, 'compiler', None)
    return isinstance(a, torch.SymInt) and hasattr(
        compiler, 'is_dynamo_compiling') and not compiler.is_dynamo_compiling()
