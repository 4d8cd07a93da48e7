"""Whether a graph is being made that other programs shall run."""
from typing import Callable, Union

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


def least(a: Size, b: Size) -> Size:
    """``min`` of two sizes, worked out anew in each run of a graph."""
    return _extreme(a, b, torch.minimum, torch.sym_min, min)


def most(a: Size, b: Size) -> Size:
    """``max`` of two sizes, worked out anew in each run of a graph."""
    return _extreme(a, b, torch.maximum, torch.sym_max, max)


def _extreme(a: Size, b: Size, of_tensors: Callable, of_symbols: Callable, of_numbers: Callable) -> Size:
    """A size is a tensor to TorchScript's recorder, a symbol to that of torch.export, and a number otherwise."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return of_tensors(torch.as_tensor(a), torch.as_tensor(b))
    return (of_symbols if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt) else of_numbers)(a, b)
