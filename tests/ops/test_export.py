"""Operators in graphs: exported ones hold plain formulas, compiled ones are in one piece."""

from contextlib import nullcontext

import pytest
import torch
import torch._dynamo
from functorch.compile import make_boxed_func
from oracles import error, tokens, value_and_grads
from torch._dynamo.backends.common import aot_autograd

from mmsoft.ops import gaussian, gaussian_product, l1_attention, soft_attention, soft_norm_attention
from mmsoft.ops.inverse import compiled_product
from mmsoft.ops.numerics import is_compiling, is_exporting

IN_ONE = hasattr(torch, 'export')  # torch 2.0 compiles in pieces


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def inputs(*sizes):
    return tuple(tokens(2, 3, n, 8, seed=i).float() for i, n in enumerate(sizes))


OPERATORS = {
    'soft': (soft_attention, (40, 9, 40)),
    'soft_norm': (soft_norm_attention, (40, 9, 40)),
    'gaussian': (lambda q, v: gaussian_product(q, q, v), (40, 40)),
    'sima': (l1_attention, (40, 40, 40)),
}


def test_nothing_is_recorded_by_itself():
    assert not is_exporting() and not is_compiling()


@pytest.mark.skipif(not hasattr(torch.export, 'Dim'), reason='torch 2.1 has no names for free sizes')
@pytest.mark.parametrize('strict', [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(
    'operator, sizes',
    [pytest.param(*case, marks=[pytest.mark.slow] * (name == 'soft')) for name, case in OPERATORS.items()],
    ids=OPERATORS,
)
def test_export_for_any_size(operator, sizes, strict):
    many, few = torch.export.Dim('tokens', min=4), torch.export.Dim('landmarks', min=2)  # torch 2.13 sets 2 apart
    shapes = [{2: few if size == 9 else many} for size in sizes]
    program = torch.export.export(Module(operator), inputs(*sizes), dynamic_shapes=(tuple(shapes),), strict=strict)
    assert all('mmsoft' not in str(node.target) for node in program.graph.nodes)
    if not strict:
        program = program.run_decompositions()  # as torch.onnx does
    for n, m in ((40, 9), (77, 16)):
        case = inputs(*(m if size == 9 else n for size in sizes))
        assert error([program.module()(*case)], [operator(*case)])[0] < 1e-5


needs_operators = pytest.mark.skipif(not hasattr(torch.library, 'custom_op'), reason='operators of Python: torch 2.4')


@needs_operators
@pytest.mark.parametrize('environment', ['', 'tiled'])
def test_operators_are_as_compilers_want_them(environment, monkeypatch):
    monkeypatch.setenv('MMSOFT_GAUSSIAN', environment)
    x = torch.randn(3, 9, 40)
    case = torch.randn(3, 9, 5), 20, x @ x.transpose(1, 2) / 40, torch.full((3, 1, 1), 0.01)
    torch.library.opcheck(compiled_product, case)
    x, y, b, grad = (torch.randn(2, 3, *sizes) for sizes in ((9, 8), (5, 8), (5, 4), (9, 4)))
    torch.library.opcheck(gaussian._compiled_forward, (x, y, b))
    torch.library.opcheck(gaussian._compiled_backward, (grad, x, y, b))


@needs_operators
@pytest.mark.parametrize('dynamic', [False, pytest.param(True, marks=pytest.mark.slow)], ids=['static', 'dynamic'])
@pytest.mark.parametrize('attend', [pytest.param(soft_attention, marks=pytest.mark.slow), soft_norm_attention])
def test_compilers_do_not_look_into_inverse_and_products(attend, dynamic):
    """Written out, 20 steps of 2 products took a compiler minutes, in each of a network's blocks.

    Of a GPU's products a compiler would write out the mask: as large as the kernel that is never held.
    """
    graphs = []

    def keep(graph, _):
        graphs.append([node.target for node in graph.graph.nodes])
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    compiled = torch.compile(attend, backend=aot_autograd(fw_compiler=keep), fullgraph=True, dynamic=dynamic)
    for sizes in ((40, 9, 40), (300, 100, 300)):  # few tokens are iterated, many filtered by the resolvent
        got, want = (value_and_grads(function, *inputs(*sizes)) for function in (compiled, attend))
        assert max(error(got, want)) < 1e-4
    assert len(graphs) == (2 if dynamic else 4)  # forward and backward
    assert {graph.count(torch.ops.mmsoft.inverse_product.default) for graph in graphs} == {1}
    operators = torch.ops.mmsoft.gaussian.default, torch.ops.mmsoft.gaussian_grad.default
    assert {tuple(map(graph.count, operators)) for graph in graphs} == {(2, 0), (0, 2)}
    assert max(map(len, graphs)) < 400


@pytest.mark.slow
@pytest.mark.parametrize('autocast', [False, True], ids=['plain', 'autocast'])
@pytest.mark.parametrize(
    'operator, sizes',
    [OPERATORS['soft_norm'], OPERATORS['sima'], (gaussian_product, (40, 9, 9))],
    ids=['soft_norm', 'sima', 'product'],
)
def test_compiles_to_one_graph(operator, sizes, autocast):
    torch._dynamo.reset()

    def run(*args):
        with torch.autocast('cpu', torch.bfloat16) if autocast else nullcontext():
            return operator(*args)

    compiled = torch.compile(run, backend='aot_eager', fullgraph=IN_ONE)
    got, want = (value_and_grads(function, *inputs(*sizes)) for function in (compiled, operator))
    assert max(error(got, want)) < 1e-4
