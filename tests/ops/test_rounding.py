"""Float32 operators keep their digits where the process lets matrix products round their factors."""

import contextlib

import dense
import pytest
import torch
from oracles import error, tokens, value_and_grads
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from mmsoft.ops import (
    gaussian_kernel,
    gaussian_product,
    inverse,
    inverse_product,
    l1_attention,
    newton_inverse,
    soft_attention,
    soft_norm_attention,
)
from mmsoft.ops.soft import soft_alpha

PRODUCTS = (
    'mm',
    'bmm',
    'addmm',
    'addmm_',
    'baddbmm',
    'baddbmm_',
    'mv',
    'addmv',
    'linear',
    '_scaled_dot_product_flash_attention_for_cpu',
    '_scaled_dot_product_flash_attention_for_cpu_backward',
)


@contextlib.contextmanager
def allowed(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class ProcessorWithAMX(TorchDispatchMode):
    """Rounds the float32 factors of products to bfloat16, as oneDNN does under 'medium' on processors with AMX."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket.__name__ in PRODUCTS and torch.get_float32_matmul_precision() == 'medium':
            args = tree_map(
                lambda t: t.bfloat16().float() if isinstance(t, torch.Tensor) and t.dtype == torch.float32 else t, args
            )
        return function(*args, **(kwargs or {}))


def inverse_of_few_and_many(x, y, b):
    """Newton's and the resolvent's route."""
    kernel = gaussian_kernel(y, ridge=0.01)
    alpha = soft_alpha(kernel.detach().sum(-1, keepdim=True) - 0.01)
    newton = inverse_product(kernel, b, alpha)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inverse, '_FEW_TOKENS', 0)
        return newton + inverse_product(kernel, b, alpha)


def dense_inverse(x, y, b):
    kernel = dense.gaussian_kernel(y, y)
    matrix = kernel + 0.01 * torch.eye(y.size(-2)).to(y)
    return 2 * dense.newton_inverse(matrix, dense.soft_alpha(kernel)) @ b


def case(n, m, values):
    return tokens(2, 2, n, 8, spread=3.0), tokens(2, 2, m, 8, spread=3.0, seed=1), tokens(2, 2, values, 8, seed=2)


OPERATORS = {
    'kernel': (lambda x, y, b: gaussian_kernel(x, y), lambda x, y, b: dense.gaussian_kernel(x, y), case(60, 12, 12)),
    'product': (gaussian_product, dense.gaussian_product, case(60, 12, 12)),
    'inverse': (inverse_of_few_and_many, dense_inverse, case(60, 12, 12)),
    'soft': (soft_attention, dense.soft_attention, case(60, 12, 60)),
    'soft_norm': (soft_norm_attention, dense.soft_norm_attention, case(60, 12, 60)),
    'sima': (l1_attention, dense.l1_attention, case(60, 60, 60)),
}


@pytest.mark.parametrize('backend', ['auto', 'tiled'])
@pytest.mark.parametrize('precision', ['highest', 'high', 'medium'])
@pytest.mark.parametrize('name', OPERATORS)
def test_digits_are_kept(name, precision, backend, monkeypatch):
    monkeypatch.setenv('MMSOFT_GAUSSIAN', backend)
    operator, oracle, inputs = OPERATORS[name]
    inputs = [t.float() for t in inputs]
    want = [t for t in value_and_grads(lambda *args: sum_with_all(oracle, args), *(t.double() for t in inputs))]
    with allowed(precision), ProcessorWithAMX():
        got = value_and_grads(lambda *args: sum_with_all(operator, args), *inputs)
        assert operator(*inputs).dtype == torch.float32
    assert max(error(got, want)) < 1e-5


def sum_with_all(operator, inputs):
    """So that every input has a gradient."""
    return operator(*inputs) + sum(t.sum() for t in inputs) * 0


def test_the_mode_rounds():
    """Or the test above proves nothing."""
    a, b = torch.randn(2, 9, 40), torch.randn(2, 40, 9)
    with allowed('medium'), ProcessorWithAMX():
        product, inverse = a @ b, newton_inverse(torch.eye(9) * 1.01, torch.tensor(0.9))
    assert (product - a.double() @ b.double()).abs().max() > 1e-3
    assert (inverse - torch.eye(9) / 1.01).abs().max() < 1e-6
