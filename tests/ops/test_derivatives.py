"""What cannot be differentiated says so."""

import pytest
import torch

from mmsoft.ops import gaussian_kernel, gaussian_product, inverse_product, soft_attention, soft_norm_attention

OPERATORS = {
    'kernel': lambda x: gaussian_kernel(x),
    'product': lambda x: gaussian_product(x, x, x),
    'inverse': lambda x: inverse_product(x @ x.mT, x, torch.tensor(0.01)),
    'soft': lambda x: soft_attention(x, x, x),
    'soft_norm': lambda x: soft_norm_attention(x, x, x),
}
every_operator = pytest.mark.parametrize('operator', OPERATORS.values(), ids=OPERATORS)


@every_operator
@pytest.mark.parametrize(
    'transform',
    [lambda f: torch.func.grad(lambda x: f(x).sum()), torch.func.vmap, torch.func.jacrev, torch.func.jacfwd],
    ids=['grad', 'vmap', 'jacrev', 'jacfwd'],
)
def test_torch_func_is_refused(transform, operator):
    with pytest.raises(RuntimeError, match='functorch transforms'):
        transform(operator)(torch.randn(1, 1, 5, 4))


@every_operator
def test_second_derivatives_are_refused(operator):
    x = torch.randn(1, 1, 5, 4, requires_grad=True)
    (first,) = torch.autograd.grad(operator(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match='once_differentiable'):
        first.square().sum().backward()
