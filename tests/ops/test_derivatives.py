"""Second derivatives, and what cannot be differentiated says so."""

import pytest
import torch
from oracles import tokens
from torch.autograd import forward_ad

from mmsoft.ops import (
    fused,
    gaussian,
    gaussian_kernel,
    gaussian_product,
    inverse_product,
    soft_attention,
    soft_norm_attention,
)

# Tokens so far apart that the inverse converges, and not so far that A is the unit matrix, where SOFT-Norm is 0.
Q, FEW, V = tokens(1, 2, 5, 3, spread=2.0), tokens(1, 2, 3, 3, spread=1.5, seed=1), tokens(1, 2, 5, 2, seed=2)
OPERATORS = {
    'kernel': (gaussian_kernel, (Q, FEW)),
    'kernel of one set': (lambda x: gaussian_kernel(x, ridge=0.01), (Q,)),
    'product': (gaussian_product, (Q, FEW, tokens(1, 2, 3, 2))),
    'inverse': (lambda x, y: inverse_product(x @ x.mT, y, torch.tensor(0.01)), (tokens(1, 2, 3, 3), FEW)),
    'soft': (soft_attention, (Q, FEW, V)),
    'soft_norm': (soft_norm_attention, (Q, FEW, V)),
}
every_operator = pytest.mark.parametrize(('operator', 'inputs'), OPERATORS.values(), ids=OPERATORS)


@every_operator
@pytest.mark.parametrize(
    'transform',
    [
        lambda f: torch.func.grad(lambda x: f(x).sum()),
        lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
        torch.func.vmap,
        torch.func.jacrev,
        torch.func.jacfwd,
    ],
    ids=['grad', 'jvp', 'vmap', 'jacrev', 'jacfwd'],
)
def test_torch_func_is_refused(transform, operator, inputs):
    with pytest.raises(RuntimeError, match='functorch transforms'):
        transform(lambda first: operator(first, *inputs[1:]))(inputs[0])


@every_operator
def test_forward_mode_is_refused(operator, inputs):
    """Instead of a tangent that is wrong."""
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match='jvp'):
        operator(forward_ad.make_dual(inputs[0], inputs[0]), *inputs[1:])


@every_operator
@pytest.mark.parametrize('elements', [6, 2**20])
def test_second_derivatives(operator, inputs, method, elements, monkeypatch):
    monkeypatch.setitem(gaussian.TILE_ELEMENTS, 'cpu', elements)  # tiles of one row or of all
    assert torch.autograd.gradgradcheck(operator, [t.clone().requires_grad_() for t in inputs], fast_mode=True)


@every_operator
def test_second_derivatives_where_the_gradient_of_the_output_is_constant(operator, inputs):
    def gradient(*inputs):
        return torch.autograd.grad(operator(*inputs).sum(), inputs, create_graph=True)

    assert torch.autograd.gradcheck(gradient, [t.clone().requires_grad_() for t in inputs], fast_mode=True)


@pytest.mark.skipif(not fused._ON_CPU, reason='this torch has no fused kernel for CPUs')
@pytest.mark.parametrize('reentrant', [False, True])
def test_first_derivatives_come_from_fused_kernels(reentrant, monkeypatch):
    taken, backward = [], fused.backward
    monkeypatch.setattr(fused, 'backward', lambda *tensors: taken.append(1) or backward(*tensors))
    inputs = [t.clone().requires_grad_() for t in (Q, FEW, V)]
    torch.utils.checkpoint.checkpoint(soft_attention, *inputs, use_reentrant=reentrant).sum().backward()
    assert len(taken) == 2
