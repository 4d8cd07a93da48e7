"""The Gaussian kernel and its product by fused kernels, in parts and in tiles, against the dense formula."""

from types import SimpleNamespace

import dense
import pytest
import torch
from devices import every_setting, settings
from oracles import error, shape_id, tokens, value_and_grads
from torch.utils.flop_counter import FlopCounterMode

from mmsoft.ops import fused, gaussian, gaussian_kernel, gaussian_product

# batch, heads, n, m, d, c
SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (1, 1, 7, 1, 32, 32),
    (1, 3, 1, 9, 8, 5),
    (2, 11, 33, 12, 32, 32),
    (3, 2, 50, 9, 8, 4),
    (1, 2, 10, 70, 16, 16),
    (1, 4, 257, 25, 32, 32),
    (1, 1, 67, 67, 3, 6),
    (1, 2, 9, 601, 32, 32),
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
ROUTES = ['fused', 'parts', 'tiles', 'small tiles']


@pytest.fixture
def route(request, monkeypatch):
    """The way that products go."""
    if request.param == 'parts':
        monkeypatch.setattr(fused, '_parts', lambda x, short, long: 3)
    if 'tiles' in request.param:
        monkeypatch.setenv('MMSOFT_GAUSSIAN', 'tiled')
    if request.param == 'small tiles':
        monkeypatch.setattr(gaussian, 'TILE_ELEMENTS', dict(cpu=37, cuda=37))


every_route = pytest.mark.parametrize('route', ROUTES, indirect=True)


def inputs(shape, spread=1.0):
    batch, heads, n, m, d, c = shape
    return (
        tokens(batch, heads, n, d, spread=spread),
        tokens(batch, heads, m, d, spread=spread, seed=1),
        tokens(batch, heads, m, c, seed=2),
    )


@pytest.mark.parametrize('shape', SHAPES, ids=shape_id)
def test_kernel_is_the_exponential_of_distances(shape):
    x, y, _ = inputs(shape)
    want = value_and_grads(dense.gaussian_kernel, x, y)
    assert max(error(value_and_grads(gaussian_kernel, x, y), want)) < 1e-12


@pytest.mark.parametrize('ridge', [0.0, 0.01])
@pytest.mark.parametrize('m', [1, 2, 30])
def test_kernel_of_a_set_with_itself(m, ridge):
    x = tokens(2, 3, m, 8)
    want = value_and_grads(lambda x: dense.gaussian_kernel(x, x) + ridge * torch.eye(m).double(), x)
    assert max(error(value_and_grads(lambda x: gaussian_kernel(x, ridge=ridge), x), want)) < 1e-12
    assert (gaussian_kernel(x.float(), ridge=ridge).diagonal(dim1=-2, dim2=-1) == 1 + ridge).all()
    assert torch.equal(gaussian_kernel(x, x.clone(), ridge), gaussian_kernel(x, x.clone())), 'of two sets there is none'


@pytest.mark.parametrize('spread', [1.0, 30.0, 1e3])
def test_kernel_neither_exceeds_one_nor_is_subnormal(spread):
    """Above one the inverse's steps diverge; a CPU is several times as slow with subnormal numbers."""
    x = tokens(2, 300, 32, spread=spread).float()
    kernel = gaussian_kernel(x, x.clone())
    assert kernel.max() <= 1 and kernel.min() >= torch.finfo(torch.float32).tiny


@every_route
@pytest.mark.parametrize('offset', [0.0, 10.0, 100.0, 1e3, 1e4])
def test_tokens_may_lie_anywhere(offset, route):
    """As a query's bias or a channel of outliers moves them; 1e4 leaves float32 three digits behind the point."""
    tokens = inputs((1, 2, 300, 60, 32, 32), 1.7)
    x, y, b = ((t + move).float().double() for t, move in zip(tokens, (offset, offset, 0)))
    assert gaussian_kernel(x.float(), y.float()).max() <= 1
    for got, want in (
        (gaussian_kernel(x.float(), y.float()), dense.gaussian_kernel(x, y)),
        (gaussian_product(x.float(), y.float(), b.float()), dense.gaussian_product(x, y, b)),
    ):
        assert (got.double() - want).abs().max() < 1e-5
    got, want = (
        value_and_grads(f, x, y, b, dtype=dtype)
        for f, dtype in ((gaussian_product, torch.float32), (dense.gaussian_product, torch.float64))
    )
    assert max(error(got, want)) < 1e-5


@every_route
@pytest.mark.parametrize('dtype', TOLERANCE, ids=shape_id)
@pytest.mark.parametrize('shape', SHAPES, ids=shape_id)
def test_product_equals_dense_in_value_and_gradients(shape, dtype, route):
    want = value_and_grads(dense.gaussian_product, *inputs(shape))
    got = value_and_grads(gaussian_product, *inputs(shape), dtype=dtype)
    assert max(error(got, want)) < TOLERANCE[dtype]


@every_route
@pytest.mark.parametrize('single', [(2,), (0,), (1, 2), (0, 2)], ids=str)
@pytest.mark.parametrize('dims', [(0,), (1,), (0, 1)], ids=str)
def test_images_and_heads_are_broadcast(dims, single, route):
    """As where heads share their values. A fused kernel would read beyond the end of the smaller tensors."""
    case = [
        t[[slice(1 if i in single and dim in dims else None) for dim in range(2)]]
        for i, t in enumerate(inputs((2, 3, 70, 37, 8, 8)))
    ]
    want = value_and_grads(dense.gaussian_product, *case)
    assert max(error(value_and_grads(gaussian_product, *case, dtype=torch.float32), want)) < 1e-5


@every_route
@pytest.mark.parametrize('sizes', [(1, 37), (37, 1), (30, 37), (37, 30)], ids=str)
def test_as_many_values_as_tokens(sizes, route):
    x, y, b = inputs((1, 2, 70, 37, 8, 8))
    with pytest.raises(RuntimeError):
        gaussian_product(x, y[:, :, : sizes[0]], b[:, :, : sizes[1]])


@every_setting
@every_route
def test_product_on_every_device(setting, route):
    case = inputs((2, 3, 300, 20, 32, 32))
    want = value_and_grads(dense.gaussian_product, *case)
    with settings(setting) as device:
        got = value_and_grads(gaussian_product, *(t.to(device) for t in case), dtype=torch.float32)
        kernel = gaussian_kernel(case[1].to(device).float())
    assert max(error(got, want)) < 1e-5
    torch.testing.assert_close(kernel.cpu().double(), dense.gaussian_kernel(case[1], case[1]), rtol=1e-5, atol=1e-6)


@every_route
@pytest.mark.parametrize('dims', [(0, 1), (1, 2), (2, 3)], ids=shape_id)
def test_non_contiguous_inputs(dims, route):
    x, y, b = (t.transpose(*dims).contiguous().transpose(*dims) for t in inputs((3, 2, 50, 9, 8, 4)))
    assert not x.is_contiguous()
    want = value_and_grads(dense.gaussian_product, x, y, b)
    assert max(error(value_and_grads(gaussian_product, x, y, b), want)) < 1e-12


@every_route
def test_expanded_inputs_and_gradients(route):
    def total(product):
        return lambda x, y, b: product(*(t.expand(3, 5, -1, -1) for t in (x, y, b))).sum()

    case = inputs((1, 1, 20, 6, 8, 8))
    want = value_and_grads(total(dense.gaussian_product), *case)
    assert max(error(value_and_grads(total(gaussian_product), *case), want)) < 1e-12


@pytest.mark.parametrize(
    'shape', [(0, 2, 5, 3, 4, 4), (2, 2, 0, 3, 4, 4), (2, 2, 5, 0, 4, 4), (2, 0, 5, 3, 4, 2)], ids=shape_id
)
def test_empty_sets(shape):
    batch, heads, n, m, d, c = shape
    x, y, b = (torch.ones(batch, heads, *rest, requires_grad=True) for rest in ((n, d), (m, d), (m, c)))
    out = gaussian_product(x, y, b)
    assert out.shape == (batch, heads, n, c) and not out.any()
    assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), (x, y, b)))
    assert gaussian_kernel(x, y).shape == (batch, heads, n, m)


@every_route
@pytest.mark.parametrize('where', range(3), ids=('x', 'y', 'b'))
def test_what_is_not_a_number_stays_so(where, route):
    case = [t.float() for t in inputs((2, 1, 20, 6, 8, 8))]
    want = gaussian_product(*case)[1]
    case[where][0, 0, 2, 3] = float('nan')
    got = gaussian_product(*case)
    assert got[0, :, 2, 3].isnan().all()
    assert torch.equal(got[1], want)


@every_route
@pytest.mark.parametrize('spread', [0.0, 1e-3, 3.0, 30.0])
def test_product_whatever_the_spread_of_the_tokens(spread, route):
    case = inputs((2, 2, 40, 9, 32, 8), spread)
    want = value_and_grads(dense.gaussian_product, *case)
    out, *grads = value_and_grads(gaussian_product, *case, dtype=torch.float32)
    assert error([out], want[:1])[0] < 1e-4
    for got, exact in zip(grads, want[1:]):
        assert (got - exact).abs().max() < 1e-4 * max(1, exact.abs().max())


@every_route
@pytest.mark.parametrize('wanted', range(3), ids=('x', 'y', 'b'))
def test_gradient_of_one_input_alone(wanted, route):
    case = inputs((1, 2, 20, 6, 8, 8))
    every = value_and_grads(gaussian_product, *case)[1:]
    case[wanted].requires_grad_()
    out = gaussian_product(*case)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(out)
    torch.testing.assert_close(torch.autograd.grad(out, case[wanted], grad)[0], every[wanted])


@every_route
@pytest.mark.parametrize('shape', [(1, 2, 5, 3, 4, 2), (2, 1, 3, 6, 2, 3), (1, 1, 4, 1, 3, 1)], ids=shape_id)
def test_gradcheck(shape, route):
    case = [t.requires_grad_() for t in inputs(shape)]
    assert torch.autograd.gradcheck(gaussian_product, case)


@pytest.mark.parametrize('device, most', [('cpu', 2**20), ('meta', 2**27)])  # others than a CPU are like a GPU
def test_tiles_of_all_images_and_heads_are_as_large_as_they_may_be(device, most):
    x, y = (torch.empty(2, 3, n, 8, device=device) for n in (10**6, 1000))
    rows = [tile.size(-2) for tile in gaussian._tiles(x, y)]
    assert sum(rows) == 10**6 and max(rows) == most // (2 * 3 * 1000)


@pytest.mark.parametrize('learns', [False, True])
def test_memory_is_that_of_the_tokens(learns):
    n = 3000  # the whole kernel matrix would take 36 MB, the tokens take 0.4 MB
    x, y, b = (torch.randn(1, 1, n, 32, requires_grad=learns) for _ in range(3))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        out = gaussian_product(x, y, b)
        if learns:
            out.sum().backward()
    # Each thread has its block. Before torch 2.3 it is a tile at a time.
    most = 1e6 * (1 + torch.get_num_threads()) if fused._ON_CPU else 4 * gaussian.TILE_ELEMENTS['cpu']
    assert max(event.cpu_memory_usage for event in profile.events()) <= most


class TestFusedKernels:
    """When they are taken, and when not."""

    @pytest.fixture(autouse=True)
    def unchecked(self, monkeypatch):
        """Routes that products take, none of which was checked before."""
        if not fused._ON_CPU:
            pytest.skip('this torch has none for CPUs')
        taken, check = [], fused._works
        for name in ('forward', 'backward'):
            monkeypatch.setattr(fused, name, self.noted(taken, getattr(fused, name)))
        check.cache_clear()
        yield taken
        check.cache_clear()

    @staticmethod
    def noted(taken, function):

        def call(*args):
            taken.append(args[0].shape)
            return function(*args)

        return call

    def test_checked_once_per_dtype(self, unchecked):
        case = inputs((1, 2, 9, 5, 4, 4))
        for dtype, calls in ((torch.float64, 3), (torch.float64, 1), (torch.float32, 3), (torch.float32, 1)):
            del unchecked[:]
            gaussian_product(*(t.to(dtype) for t in case))
            assert len(unchecked) == calls  # the product, and at first two of the check

    @pytest.mark.parametrize('broken', ['forward', 'backward', 'nan', RuntimeError, TypeError])
    def test_broken_kernels_are_replaced_by_tiles(self, broken, monkeypatch):
        name = 'backward' if broken == 'backward' else 'forward'
        right = getattr(fused, name)

        def wrong(*args):
            if isinstance(broken, type):  # no kernel, or one with other arguments
                raise broken('not found')
            out = right(*args)
            if broken == 'backward':
                return out[0], out[1] * 1.01, out[2]
            return out * (float('nan') if broken == 'nan' else 1.01)

        monkeypatch.setattr(fused, name, wrong)
        case = inputs((1, 2, 9, 5, 4, 4))
        want = value_and_grads(dense.gaussian_product, *case)
        with pytest.warns(UserWarning, match='for torch.float64 on cpu failed the self-check') as warned:
            for _ in range(2):
                assert max(error(value_and_grads(gaussian_product, *case), want)) < 1e-12
        assert len(warned) == 1

    def test_environment_variable_forbids_them_at_any_time(self, unchecked, monkeypatch):
        case = inputs((1, 2, 9, 5, 4, 4))
        monkeypatch.setenv('MMSOFT_GAUSSIAN', 'fused')
        gaussian_product(*case)
        assert unchecked
        del unchecked[:]
        monkeypatch.setenv('MMSOFT_GAUSSIAN', 'tiled')
        assert max(error([gaussian_product(*case)], [dense.gaussian_product(*case)])) < 1e-12
        assert not unchecked

    def test_nothing_is_checked_in_a_graph_or_under_a_mode(self, unchecked):
        case = inputs((1, 2, 9, 5, 4, 4))
        with FlopCounterMode(display=False):
            gaussian_product(*case)
        torch.jit.trace(gaussian_product, case, check_trace=False)
        assert unchecked and fused._works.cache_info().currsize == 0

    def test_cuda_without_memory_efficient_attention(self, monkeypatch):
        monkeypatch.setattr(fused, '_ON_CUDA', True)
        monkeypatch.setattr(fused, '_works', lambda *_: True)
        monkeypatch.setattr(torch.cuda, 'is_current_stream_capturing', lambda: False)
        case = [SimpleNamespace(device=torch.device('cuda'), dtype=torch.float32, numel=lambda: 1)] * 3
        monkeypatch.setattr(torch.backends.cuda, 'mem_efficient_sdp_enabled', lambda: True)
        assert fused.serves(*case)
        monkeypatch.setattr(torch.backends.cuda, 'mem_efficient_sdp_enabled', lambda: False)
        assert not fused.serves(*case)

    @pytest.mark.parametrize('dtype', TOLERANCE, ids=shape_id)
    def test_cuda_in_float32_alone_and_unchecked_while_a_graph_is_captured(self, dtype, monkeypatch):
        monkeypatch.setattr(fused, '_ON_CUDA', True)
        monkeypatch.setattr(fused, '_works', lambda *_: pytest.fail('waits for the device'))
        monkeypatch.setattr(torch.cuda, 'is_current_stream_capturing', lambda: True)
        monkeypatch.setattr(torch.backends.cuda, 'mem_efficient_sdp_enabled', lambda: True)
        case = [SimpleNamespace(device=torch.device('cuda'), dtype=dtype, numel=lambda: 1)] * 3
        assert fused.serves(*case) == (dtype == torch.float32)


@every_route
@pytest.mark.parametrize('far', [1e3, 1e6])
def test_a_token_far_away_does_not_cost_the_others_their_digits(far, route):
    """As a broken pixel's, among queries; bottleneck tokens, the smaller set, are normalised."""
    x, y, b = (t.float() for t in inputs((1, 2, 300, 60, 32, 32)))
    x[:, :, 7] += far
    for sets in ((x, y, b), (y, x, x.flip(2).clamp(-1, 1))):
        got = value_and_grads(gaussian_product, *sets, dtype=torch.float32)
        assert max(error(got, value_and_grads(dense.gaussian_product, *(t.double() for t in sets)))) < 1e-5
