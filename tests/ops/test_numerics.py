"""What runs in float32 whatever surrounds it, and products that lose nothing to TF32."""

import inspect

import pytest
import torch
from torch.overrides import TorchFunctionMode

from mmsoft.ops import fused, numerics
from mmsoft.ops.numerics import add_product, at_least_float32, exact_product, no_autocast, tf32_parts


class RoundedProducts(TorchFunctionMode):
    """Rounds the factors of every product to the eleven bits of TF32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.matmul, torch.Tensor.__matmul__, torch.matmul):
            args = tuple(((t.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32) for t in args)
        return func(*args, **(kwargs or {}))


def test_split_products_lose_nothing_to_tf32():
    a, b = 100 * torch.randn(3, 70, 34), torch.randn(3, 34, 50)
    want = a.double() @ b.double()
    with RoundedProducts():
        rounded, whole = a @ b, sum(left @ right for left, right in tf32_parts(a, b))
    scale = a.double().norm(dim=-1).max() * b.double().norm(dim=-2).max()
    assert (rounded - want).abs().max() > 1e-5 * scale  # or the mode does nothing
    assert (whole - want).abs().max() < 1e-6 * scale


@pytest.mark.cuda
@pytest.mark.parametrize('allowed', ['highest', 'high', 'medium'])
def test_exact_products_on_a_gpu(allowed):
    a, b = torch.randn(2, 300, 34), torch.randn(2, 34, 200)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(allowed)
    try:
        got = exact_product(a.cuda(), b.cuda())
        assert torch.get_float32_matmul_precision() == allowed
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(got.cpu().double(), a.double() @ b.double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize('pairs', [1, 3])
def test_products_add_up(pairs, monkeypatch):
    c, a, b = torch.randn(2, 7, 5), torch.randn(2, 7, 3), torch.randn(2, 3, 5)
    monkeypatch.setattr(numerics, '_factors', lambda a, b: tf32_parts(a, b)[:pairs] if pairs > 1 else ((a, b),))
    torch.testing.assert_close(exact_product(a, b), a @ b)
    torch.testing.assert_close(add_product(c, a, b, beta=-2, alpha=0.5), 0.5 * (a @ b) - 2 * c)


@pytest.mark.parametrize('lead', [(), (2,), (2, 2)], ids=len)
@pytest.mark.parametrize('allowed, products', [('highest', 1), ('high', 3)])
def test_products_are_split_where_tf32_is_allowed(allowed, products, lead):
    before, calls = torch.get_float32_matmul_precision(), []

    class Products(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            calls.append(func in (torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.__matmul__))
            return func(*args, **(kwargs or {}))

    torch.set_float32_matmul_precision(allowed)
    try:
        with Products():
            exact_product(torch.empty(*lead, 3, 4, device='meta'), torch.empty(*lead, 4, 5, device='meta'))
    finally:
        torch.set_float32_matmul_precision(before)
    assert sum(calls) == products


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_split_products_keep_what_is_not_finite(value):
    a = torch.ones(4, 5)
    a[1, 2] = value
    got = sum(left @ right for left, right in tf32_parts(a, torch.ones(5, 3)))
    assert (~got[1].isfinite()).all() and (got[[0, 2, 3]] == 5).all()


@at_least_float32
def probe(x, *rest, flag=None):
    """The arithmetic that arrives."""
    probe.seen = [getattr(value, 'dtype', value) for value in (x, *rest, flag)] + [(x[:1, :1] @ x[:1, :1]).dtype]
    return x


@pytest.mark.parametrize(
    'dtype, wide',
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
@pytest.mark.parametrize('autocast', [False, True])
def test_only_what_is_narrow_is_widened(dtype, wide, autocast):
    x, indices = torch.ones(2, 2, dtype=dtype), torch.tensor([1])
    with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
        assert probe(x, indices, 7, None, flag='auto').dtype == dtype
    assert probe.seen == [wide, torch.int64, 7, None, 'auto', wide]
    assert probe(x=x).dtype == dtype
    assert list(inspect.signature(probe).parameters) == ['x', 'rest', 'flag']


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_where_a_cpu_may_round_float32_all_is_float64(dtype):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision('medium')
    try:
        assert probe(torch.ones(2, 2, dtype=dtype)).dtype == dtype
    finally:
        torch.set_float32_matmul_precision(before)
    assert probe.seen[0] == torch.float64


@pytest.mark.parametrize('device', ['cpu', 'cuda', 'mps', 'xla', 'meta'])
def test_autocast_can_be_off_on_any_device(device):
    with no_autocast(device), torch.autocast('cpu', torch.bfloat16, enabled=False):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.skipif(not fused._ON_CUDA, reason='this torch has no such operator, and the package takes another route')
@pytest.mark.parametrize('n, m, d, c', [(67200, 1050, 32, 32), (1050, 67201, 32, 32), (301, 33, 30, 5), (1, 1, 1, 1)])
def test_arguments_of_the_gpus_kernels(n, m, d, c):
    """Without memory, the operators that a GPU would run check their arguments."""
    x, y, b = (torch.empty(1, 2, *shape, device='meta') for shape in ((n, d), (m, d), (m, c)))
    out = fused.forward(x, y, b)
    assert out.shape == (1, 2, n, c)
    grads = fused.backward(torch.empty_like(out), x, y, b)
    assert [grad.shape for grad in grads] == [x.shape, y.shape, b.shape]
