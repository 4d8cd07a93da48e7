"""Whether operators are being recorded, for a graph that other programs shall run, or by whoever counts them."""
from typing import Union

import torch
from torch import Tensor

Size = Union[int, Tensor]


def exporting() -> bool:
    """Whether operations are being recorded by ``torch.export`` or ``torch.onnx.export``.

    Autograd functions, fused kernels and choices by value have no place in such a graph; every operator of
    :mod:`mmsoft.ops` that has them writes its plain formula instead. Before torch 2.7 a recording does not know whether
    it is made by ``torch.export`` or by ``torch.compile``, and both get the formula.
    """
    if torch.onnx.is_in_onnx_export():
        return True
    compiler = getattr(torch, 'compiler', None)
    for question in ('is_exporting', 'is_compiling'):
        if hasattr(compiler, question):
            return getattr(compiler, question)()
    return False


def watched() -> bool:
    """Whether this thread's operators are being recorded or counted, by someone who would miss those of others."""
    compiling = getattr(getattr(torch, 'compiler', None), 'is_compiling', lambda: False)  # since torch 2.1
    return (compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0
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
