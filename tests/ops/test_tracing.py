"""Operators in graphs: exported ones hold plain formulas, compiled ones are in one piece."""
from contextlib import nullcontext

import pytest
import torch
import torch._dynamo
from oracles import error, tokens, value_and_grads

from mmsoft.ops import gaussian, gaussian_attention, gaussian_product, l1_attention, soft_attention, soft_norm_attention
from mmsoft.ops.tracing import exporting

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
    'gaussian': (gaussian_attention, (40, 40)),
    'sima': (l1_attention, (40, 40, 40)),
}
every_operator = pytest.mark.parametrize('operator, sizes', OPERATORS.values(), ids=OPERATORS)


def test_nothing_is_exported_by_itself():
    assert not exporting()


@pytest.mark.skipif(not hasattr(torch, 'export'), reason='torch 2.0 records no such programs')
@pytest.mark.parametrize('strict', [True, False])
@every_operator
def test_export_for_any_size(operator, sizes, strict):
    many, few = torch.export.Dim('tokens', min=4), torch.export.Dim('landmarks', min=2)  # torch 2.13 sets 2 apart
    shapes = [{2: few if size == 9 else many} for size in sizes]
    program = torch.export.export(Module(operator), inputs(*sizes), dynamic_shapes=(tuple(shapes), ), strict=strict)
    if not strict:
        program = program.run_decompositions()  # as torch.onnx does
    for n, m in ((40, 9), (77, 16)):
        case = inputs(*(m if size == 9 else n for size in sizes))
        assert error([program.module()(*case)], [operator(*case)])[0] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('plain, autocast', [(True, False), (False, True)], ids=['plain', 'autocast'])
@pytest.mark.parametrize('operator, sizes', [OPERATORS['soft_norm'], OPERATORS['sima'], (gaussian_product, (40, 9, 9))],
                         ids=['soft_norm', 'sima', 'product'])
def test_compiles_to_one_graph(operator, sizes, autocast, plain, monkeypatch):
    monkeypatch.setattr(gaussian, 'exporting', lambda: plain)  # as torch before 2.7 does, and as later ones
    torch._dynamo.reset()

    def run(*args):
        with torch.autocast('cpu', torch.bfloat16) if autocast else nullcontext():
            return operator(*args)

    compiled = torch.compile(run, backend='aot_eager', fullgraph=IN_ONE)
    got, want = (value_and_grads(function, *inputs(*sizes)) for function in (compiled, operator))
    assert max(error(got, want)) < 1e-4
