"""The gain of few bottleneck tokens against the papers' formulas, dense and in float64."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F

from mmsoft.ops import gain, matched_attention, soft_attention, soft_norm_attention

from . import dense
from .devices import every_setting, settings
from .oracles import tokens

both = pytest.mark.parametrize('norm', [False, True], ids=['soft', 'soft_norm'])
PLAIN = {False: soft_attention, True: soft_norm_attention}
EXACT = {False: dense.soft_attention, True: dense.soft_norm_attention}


def problem(n=512, full=400, few=16, batch=2, spread=1.0, seed=0):
    """Queries around their bottleneck tokens, as in a map; few of these are means of many."""
    bottleneck = tokens(batch, 2, full, 16, spread=spread, seed=seed).cumsum(2) / full**0.5
    q = bottleneck.repeat_interleave(-(-n // full), 2)[:, :, :n]
    q = q + 0.05 * tokens(batch, 2, n, 16, seed=seed + 1)
    v = tokens(batch, 2, n, 16, seed=seed + 2)
    means = torch.stack([part.mean(2) for part in bottleneck.tensor_split(few, 2)], 2)
    return q, means, v, bottleneck


@cache
def some_columns(norm, spread):
    """A problem, and what attention makes of the columns of values with few tokens and with all, by the dense reference."""
    q, few, v, full = problem(spread=spread)
    q, v = (t[:, :, : gain.SIZES[norm][0]] for t in (q, v))  # all of which take part
    u = v @ torch.arange(1.0, 16 * 8 + 1, dtype=torch.float64).square().cos().view(16, -1)
    return (q, few, v, full), [EXACT[norm](q, t, u) for t in (few, full)]


@both
@pytest.mark.parametrize('spread', [0.1, 1.0, 5.0, 20.0])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64], ids=['float32', 'float64'])
def test_gain_is_that_of_the_exact_filter(norm, spread, dtype):
    inputs, (some, all_) = some_columns(norm, spread)
    want = (some * all_).sum((2, 3), True) / some.square().sum((2, 3), True)
    got = gain.matched_gain(*(t.to(dtype) for t in inputs), norm, 20)
    assert (want - 1).abs().max() > (0.3 if norm or spread == 20 else 0.002)  # there is something to match
    torch.testing.assert_close(got.double(), want, rtol=2e-2 if spread == 20 else 1e-3, atol=0)


@both
def test_the_estimate_iterates_from_the_scale_of_the_attention(norm, monkeypatch):
    q, few, v, full = problem(spread=5.0)
    scales, inverse_product = [], gain.inverse_product

    def watched(matrix, columns, alpha, iterations):
        scales.extend(half.unflatten(0, full.shape[:2]) for half in alpha.chunk(2))
        return inverse_product(matrix, columns, alpha, iterations)

    monkeypatch.setattr(gain, 'inverse_product', watched)
    gain.matched_gain(q, few, v, full, norm, 20)
    assert len(scales) == 2
    for got, bottleneck in zip(scales, (few, full)):
        kernel = dense.gaussian_kernel(bottleneck, bottleneck)
        want = torch.stack([dense.soft_norm_alpha(one) for one in kernel]) if norm else dense.soft_alpha(kernel)
        torch.testing.assert_close(got, want.view(2, -1, 1, 1).expand_as(got))


@both
def test_few_iterations_are_those_of_attention_and_gain(norm):
    q, few, v, full = problem(n=300, full=40, few=5)
    want = PLAIN[norm](q, few, v, 3) * gain.matched_gain(q, few, v, full, norm, 3)
    torch.testing.assert_close(matched_attention(q, few, v, full, norm, 3), want)
    assert relative_error(matched_attention(q, few, v, full, norm), want) > 0.01


def relative_error(got, want):
    return ((got.to(want) - want).norm() / want.norm()).item()


@both
@every_setting
def test_every_setting_gives_the_same_attention(norm, setting):
    inputs = problem(n=1600)
    with settings(setting) as device:
        got = matched_attention(*(t.float().to(device) for t in inputs), norm)
    assert relative_error(got, matched_attention(*inputs, norm)) < 5e-5  # with TF32 in exact_product 6.6e-5 or more


@both
@pytest.mark.cuda
def test_a_graph_compiled_for_a_gpu_gives_the_same_attention(norm):
    inputs = problem(n=1600)
    compiled = torch.compile(matched_attention, fullgraph=True)
    got = compiled(*(t.float().cuda() for t in inputs), norm)
    assert relative_error(got, matched_attention(*inputs, norm)) < 5e-5


@both
def test_attention_without_gradients_is_scaled_alike(norm):
    inputs = problem(n=1600)
    want = matched_attention(*inputs, norm)
    with torch.no_grad():
        torch.testing.assert_close(matched_attention(*inputs, norm), want, rtol=1e-6, atol=1e-9)


def test_attention_is_scaled_to_that_with_all_tokens():
    q, few, v, full = problem(n=1600)
    want, without = (dense.soft_norm_attention(q, t, v) for t in (full, few))
    errors = [relative_error(got, want) for got in (matched_attention(q, few, v, full), without)]
    assert errors[0] < 0.1 and errors[1] > 1


@both
def test_with_all_tokens_the_gain_is_one(norm):
    q, _, v, full = problem()
    torch.testing.assert_close(matched_attention(q, full, v, full, norm), PLAIN[norm](q, full, v), rtol=1e-6, atol=1e-9)


@both
def test_an_image_does_not_depend_on_its_batch_nor_on_how_heads_are_grouped(norm, monkeypatch):
    inputs = [t.float() for t in problem(n=1600, batch=5)]
    want = matched_attention(*inputs, norm)
    assert torch.equal(matched_attention(*inputs, norm), want)
    torch.testing.assert_close(matched_attention(*(t[1:2] for t in inputs), norm), want[1:2])
    for heads in (1, 4):  # of ten: groups of one, and of four, four and two
        monkeypatch.setitem(gain.GROUP_ELEMENTS, 'cpu', heads * 400 * (400 + gain.SIZES[norm][0]))
        torch.testing.assert_close(matched_attention(*inputs, norm), want)
    assert matched_attention(*(t[:0] for t in inputs), norm).shape == (0, *want.shape[1:])


@both
@pytest.mark.filterwarnings('ignore')
def test_a_trace_of_one_image_takes_several_of_another_size(norm, monkeypatch):
    monkeypatch.setitem(gain.GROUP_ELEMENTS, 'cpu', 2 * 400 * (400 + gain.SIZES[norm][0]))  # the heads of one image
    one, several = ([t.float() for t in problem(n=n, batch=batch)] for n, batch in ((900, 1), (1600, 5)))
    traced = torch.jit.trace(lambda *tensors: matched_attention(*tensors, norm), one, check_trace=False)
    torch.testing.assert_close(traced(*several), matched_attention(*several, norm))


class OnGpu(torch.Tensor):
    is_cuda = True


MATRICES = {
    'unit': lambda x: torch.eye(len(x)),
    'ones': lambda x: torch.ones(len(x), len(x)),
    'two kinds': lambda x: (torch.arange(len(x)) % 2 == torch.arange(len(x)).unsqueeze(1) % 2).double(),
    'wide': lambda x: dense.gaussian_kernel(0.1 * x, 0.1 * x),
    'narrow': lambda x: dense.gaussian_kernel(3 * x, 3 * x),
    'hardly any': lambda x: 1e-20 * dense.gaussian_kernel(x, x),
}


@pytest.mark.parametrize('columns', ['any', 'equal', 'first one is small', 'zeros'])
@pytest.mark.parametrize('kind', MATRICES)
@pytest.mark.parametrize('m, steps', [(16, 4), (300, 4), (100, 12), (200, 12)])
@pytest.mark.parametrize(
    'dtype, on_gpu', [(torch.float32, False), (torch.float64, False), (torch.float32, True)], ids=str
)
def test_the_basis_is_orthonormal_and_holds_what_the_matrix_makes_of_the_columns(
    kind, columns, m, steps, dtype, on_gpu
):
    """Also where rounding is all that is left of a column; vectors that are not orthogonal made the gain NaN."""
    x, start = tokens(m, 4, seed=1), tokens(1, m, 8, seed=2)
    start = dict(zeros=0 * start, equal=start[:, :, :1].expand_as(start)).get(columns, start)
    start = torch.cat([1e-6 * start[:, :, :1], start[:, :, 1:]], 2) if columns == 'first one is small' else start
    matrix = MATRICES[kind](x)[None].to(dtype)
    given = start.to(dtype).as_subclass(OnGpu if on_gpu else torch.Tensor)
    basis, projected = gain._krylov(matrix, given, gain.pseudo_random(m, 8 * steps, matrix))
    basis, projected = (t.as_subclass(torch.Tensor) for t in (basis, projected))
    assert basis.size(2) == projected.size(1) == projected.size(2) == 8 * steps
    assert not any(t[:, :, m:].any() for t in (basis, projected, projected.mT))  # so many columns do not exist
    basis, projected = basis[:, :, :m], projected[:, :m, :m]
    matrix, start, basis, rounding = matrix.double(), start.to(dtype).double(), basis.double(), torch.finfo(dtype).eps
    unit = torch.eye(min(m, 8 * steps), dtype=torch.float64)[None]
    torch.testing.assert_close(basis.mT @ basis, unit, rtol=0, atol=300 * rounding)
    want = basis.mT @ matrix @ basis
    torch.testing.assert_close(projected.double(), want, rtol=0, atol=float(30 * rounding * matrix.norm()))
    for power in range(4):
        rest = start - basis @ (basis.mT @ start)
        assert rest.norm() <= 100 * rounding * start.norm(), power
        start = matrix @ start


@both
@pytest.mark.parametrize('m', [9, 200])
@pytest.mark.parametrize('kind', ['equal', 'zeros', 'no values', 'equal values', 'two kinds', 'one few', 'far apart'])
def test_degenerate_tokens(norm, kind, m):
    """Krylov spaces of one dimension, or none; the gain stays finite, and right where there is one."""
    q, few, v, full = problem(n=600, full=m, few=1 if kind == 'one few' else 4)
    if kind in ('equal', 'zeros'):
        q, few, full = (torch.full_like(t, 0.3 * (kind == 'equal')) for t in (q, few, full))
    elif kind == 'two kinds':
        q, few, full = (t[:, :, :1] + (torch.arange(t.size(2)) % 2).view(1, 1, -1, 1) for t in (q, few, full))
    elif kind == 'far apart':
        q, few, full = 1000 * q, 1000 * few, 1000 * full
    elif 'values' in kind:
        v = torch.full_like(v, 0.0 if kind == 'no values' else 2.0)
    got = matched_attention(*(t.float() for t in (q, few, v, full)), norm)
    assert got.isfinite().all()
    if kind in ('equal', 'zeros'):  # all matrices are of rank one
        torch.testing.assert_close(got.double(), EXACT[norm](q, full, v), rtol=1e-3, atol=1e-6)


@both
@pytest.mark.parametrize('spread', [2.0, 2.5, 3.0])
def test_tokens_without_neighbours(norm, spread):
    """A is the unit matrix but for 1e-3 to 1e-9; rounding errors of few and of all tokens have to cancel in the gain."""
    torch.manual_seed(0)
    full, v = F.gelu(F.layer_norm(torch.randn(1, 4, 196, 32), (32,)) * spread), torch.randn(1, 4, 784, 32)
    q = full.repeat_interleave(4, 2) + 0.3 * torch.randn(1, 4, 784, 32)
    for few in (full[:, :, ::4], full[:, :, 1:]):
        assert matched_attention(q, few, v, full, norm).abs().max() < 2 * v.abs().max()


@both
def test_gradients_take_the_gain_for_a_constant(norm):
    inputs = [t.requires_grad_() for t in problem(n=300, full=40, few=5)]
    grads = torch.autograd.grad(matched_attention(*inputs, norm).sum(), inputs[:3])
    scale = gain.matched_gain(*inputs, norm, 20)
    assert not scale.requires_grad
    want = torch.autograd.grad((PLAIN[norm](*inputs[:3]) * scale).sum(), inputs[:3])
    torch.testing.assert_close(grads, want)
    assert torch.autograd.grad(matched_attention(*inputs, norm).sum(), inputs[3], allow_unused=True) == (None,)


@pytest.mark.parametrize('n', [1, 511, 512, 513, 700, 4096, 512 * 512])
def test_probe_is_spread_over_all_tokens(n):
    places = gain.spread_places(n, 512, torch.device('cpu'))
    assert len(places) == min(n, 512) and places.diff().gt(0).all() and places[0] >= 0 and places[-1] < n
    assert places.diff().max() < 2 * -(-n // 512) if n > 1 else True
    if n == 512 * 512:  # of a square map no column is favoured
        assert (places % 512).unique().numel() > 300
