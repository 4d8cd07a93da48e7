"""FLOPs as ``mmengine.analysis`` counts them, with handles for the operators of this package.

A FLOP is a multiply-accumulate, as in fvcore. A handle counts the products that an operator stands for, whatever route
it takes on the machine at hand: a kernel product as two products, the inverse as the Newton–Raphson iteration of the
published networks, 2 m³ a step. The papers' figures leave the inverse out, so it is an entry of its own.
"""

import copy
import typing
from collections import Counter
from math import prod
from typing import Callable, Union

import torch
from mmengine.analysis import FlopAnalyzer
from torch import Tensor, nn

INVERSE = 'newton_inverse'


def _gaussian_kernel(inputs: list, outputs: list) -> int:
    """Kernel of (…, n, d) and (…, m, d), or of the former with itself."""
    return prod(_shape(inputs[0])) * _shape(inputs[-1])[-2]


def _inverse_product(inputs: list, outputs: list) -> typing.Counter[str]:
    """Inverse of (g, m, m), times (g, m, c)."""
    (g, m, c), iterations = _shape(inputs[1]), outputs[0].node().scalar_args()[0]
    return Counter({'inverse_product': g * m * m * c, INVERSE: iterations * 2 * g * m**3})


def _dot_product_attention(inputs: list, outputs: list) -> int:
    """Product of (…, n, d) and (…, m, d), times (…, m, c)."""
    (*lead, n, d), (*_, m, c) = _shape(inputs[0]), _shape(inputs[2])
    return prod(lead) * n * m * (d + c)


def _shape(value) -> tuple[int, ...]:
    return value.type().sizes()


#: For :meth:`mmengine.analysis.FlopAnalyzer.set_op_handle`.
FLOP_HANDLES: dict[str, Callable] = {
    'prim::PythonOp._GaussianKernel': _gaussian_kernel,
    'prim::PythonOp._GaussianProduct': _dot_product_attention,
    'prim::PythonOp._InverseProduct': _inverse_product,
    'prim::PythonOp.NMSop': lambda *_: 0,
    'prim::PythonOp.RoIAlignFunction': lambda *_: 0,
    'aten::scaled_dot_product_attention': _dot_product_attention,
}


def count_flops(model: nn.Module, inputs: Union[Tensor, tuple[Tensor, ...]]) -> typing.Counter[str]:
    """Multiply-accumulates of a model by operator: ``'linear'``, ``'conv'``, … and, of SOFT's inverse, :data:`INVERSE`.

    A copy of the model is called once with ``inputs``, in eval mode and without gradients.

    Raises:
        RuntimeError: If the model has an autograd function without a handle, which would not be counted.
    """
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if getattr(module, 'sampling', None) == 'random':  # which cannot be traced; the first tokens are as many
            module.sampling = 'biased'
    analyzer = FlopAnalyzer(model, inputs).set_op_handle(**FLOP_HANDLES)
    analyzer.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    with torch.no_grad():
        flops = analyzer.by_operator()
    unknown = [name for name in analyzer.unsupported_ops() if name.startswith('prim::PythonOp')]
    if unknown:
        raise RuntimeError(f'{", ".join(unknown)} cannot be counted; add a handle to FLOP_HANDLES.')
    return flops
