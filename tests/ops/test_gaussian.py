from functools import partial

import pytest
import torch
from oracles import error, shape_id, tokens, value_and_grads

from mmsoft.ops import gaussian_kernel, gaussian_product

# batch, heads, n, m, d, c
SHAPES = [(1, 1, 1, 1, 1, 1), (1, 1, 7, 1, 32, 32), (1, 3, 1, 9, 8, 5), (2, 11, 33, 12, 32, 32), (3, 2, 50, 9, 8, 4),
          (1, 2, 10, 70, 16, 16), (1, 4, 257, 25, 32, 32)]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def inputs(shape, spread=1.):
    batch, heads, n, m, d, c = shape
    return (tokens(batch, heads, n, d, spread=spread), tokens(batch, heads, m, d, spread=spread, seed=1),
            tokens(batch, heads, m, c, seed=2))


def dense_product(x, y, b):
    return torch.exp(-0.5 * (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1)) @ b


@pytest.mark.parametrize('shape', SHAPES, ids=shape_id)
def test_kernel_is_the_exponential_of_distances(shape):
    x, y, _ = inputs(shape)
    torch.testing.assert_close(gaussian_kernel(x, y), (-0.5 * torch.cdist(x, y)**2).exp())


def test_kernel_loses_no_more_than_the_rounding_of_the_norms():
    x = tokens(1, 64, 32, spread=50.).float()
    kernel = gaussian_kernel(x, x)
    rounding = 8 * torch.finfo(x.dtype).eps * x.square().sum(-1).max()
    assert kernel.isfinite().all() and (kernel >= 0).all()
    torch.testing.assert_close(kernel.double(), torch.eye(64)[None].double(), rtol=0, atol=rounding.item())


@pytest.mark.parametrize('dtype', TOLERANCE, ids=shape_id)
@pytest.mark.parametrize('tile_elements', [None, 17, 300])
@pytest.mark.parametrize('shape', SHAPES, ids=shape_id)
def test_product_equals_dense_in_value_and_gradients(shape, tile_elements, dtype):
    want = value_and_grads(dense_product, *inputs(shape))
    product = partial(gaussian_product, tile_elements=tile_elements)
    got = value_and_grads(product, *inputs(shape), dtype=dtype)
    assert max(error(got, want)) < TOLERANCE[dtype]


@pytest.mark.parametrize('dims', [(0, 1), (1, 2), (2, 3)], ids=shape_id)
def test_non_contiguous_inputs(dims):
    x, y, b = (t.transpose(*dims).contiguous().transpose(*dims) for t in inputs((3, 2, 50, 9, 8, 4)))
    assert not x.is_contiguous()
    want = value_and_grads(dense_product, x, y, b)
    assert max(error(value_and_grads(partial(gaussian_product, tile_elements=40), x, y, b), want)) < 1e-12


def test_expanded_inputs():
    x, y, b = inputs((1, 2, 20, 6, 8, 8))
    got = gaussian_product(x.expand(3, -1, -1, -1), y.expand(3, -1, -1, -1), b.expand(3, -1, -1, -1))
    torch.testing.assert_close(got, dense_product(x, y, b).expand(3, -1, -1, -1))


@pytest.mark.parametrize('lead', [(), (4, ), (2, 1, 3)], ids=shape_id)
def test_any_leading_dimensions(lead):
    x, y, b = tokens(*lead, 9, 4), tokens(*lead, 5, 4, seed=1), tokens(*lead, 5, 3, seed=2)
    torch.testing.assert_close(gaussian_product(x, y, b), dense_product(x, y, b))


@pytest.mark.parametrize('spread', [0., 1e-3, 3., 30.])
def test_product_whatever_the_spread_of_the_tokens(spread):
    case = inputs((2, 2, 40, 9, 32, 8), spread)
    want = value_and_grads(dense_product, *case)
    out, *grads = value_and_grads(gaussian_product, *case, dtype=torch.float32)
    assert error([out], want[:1])[0] < 1e-4
    for got, exact in zip(grads, want[1:]):
        assert (got - exact).abs().max() < 1e-4 * max(1, exact.abs().max())


@pytest.mark.parametrize('wanted', range(3), ids=('x', 'y', 'b'))
def test_gradient_of_one_input_alone(wanted):
    case = inputs((1, 2, 20, 6, 8, 8))
    every = value_and_grads(gaussian_product, *case)[1:]
    case[wanted].requires_grad_()
    out = gaussian_product(*case)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(out)
    torch.testing.assert_close(torch.autograd.grad(out, case[wanted], grad)[0], every[wanted])


@pytest.mark.parametrize('tile_elements', [None, 7])
@pytest.mark.parametrize('shape', [(1, 2, 5, 3, 4, 2), (2, 1, 3, 6, 2, 3), (1, 1, 4, 1, 3, 1)], ids=shape_id)
def test_gradcheck(shape, tile_elements):
    case = [t.requires_grad_() for t in inputs(shape)]
    assert torch.autograd.gradcheck(partial(gaussian_product, tile_elements=tile_elements), case)


def test_memory_stays_at_a_tile():
    n = 3000  # the whole kernel matrix would take 36 MB
    x, b = torch.zeros(1, n, 4), torch.ones(1, n, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        gaussian_product(x, x, b, tile_elements=2**17)
    assert 2**18 < max(event.cpu_memory_usage for event in profile.events()) < 2**21
