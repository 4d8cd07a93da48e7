import inspect

import dense
import pytest
import torch
from devices import every_setting, settings
from oracles import error, shape_id, tokens, value_and_grads

from mmsoft.ops import gaussian, gaussian_kernel, inverse, numerics, soft, soft_attention, soft_norm_attention
from mmsoft.ops.soft import RIDGE, soft_alpha, soft_norm_alpha

# batch, heads, n, m, d
SHAPES = [
    (1, 1, 1, 1, 4),
    (1, 2, 100, 1, 32),
    (3, 1, 7, 3, 4),
    (3, 2, 50, 9, 8),
    (1, 3, 5, 16, 8),
    (2, 11, 33, 12, 32),
    (1, 1, 513, 25, 32),
]
ATTENTIONS = {
    'soft': (soft_attention, dense.soft_attention),
    'soft_norm': (soft_norm_attention, dense.soft_norm_attention),
}
every_attention = pytest.mark.parametrize('attention, oracle', ATTENTIONS.values(), ids=ATTENTIONS)


@pytest.mark.parametrize('m', [1, 2, 3])
@every_attention
def test_few_tokens_keep_their_digits(attention, oracle, m):
    """With two, both row sums of the kernel are equal, and what is left of 1/λ is a rounding error to a high power."""
    torch.manual_seed(0)
    for _ in range(5):
        q, b, v = torch.randn(1, 2, 60, 32) * 0.4, torch.randn(1, 2, m, 32), torch.randn(1, 2, 60, 32)
        b = torch.nn.functional.gelu(torch.nn.functional.layer_norm(b, (32,)))
        wanted = attention(q.double(), b.double(), v.double())
        torch.testing.assert_close(attention(q, b, v).double(), wanted, rtol=1e-5, atol=1e-6)


def test_the_default_dtype_does_not_matter():
    q, b, v = torch.randn(3, 1, 2, 9, 4).unbind()
    try:
        torch.set_default_dtype(torch.float64)
        assert soft_norm_attention(q, b, v).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def inputs(shape, spread=1.0):
    batch, heads, n, m, d = shape
    return (
        tokens(batch, heads, n, d, spread=spread),
        tokens(batch, heads, m, d, spread=spread, seed=1),
        tokens(batch, heads, n, d, spread=3.0, seed=2),
    )


@every_attention
@pytest.mark.parametrize('shape', SHAPES, ids=shape_id)
def test_equals_dense_in_value_and_gradients(shape, attention, oracle, method):
    case = inputs(shape)
    got = value_and_grads(attention, *case)
    assert max(error(got, value_and_grads(oracle, *case))) < 1e-6


@every_attention
@pytest.mark.parametrize('shape', SHAPES[2:5], ids=shape_id)
def test_formulas_of_exported_graphs_in_value_and_gradients(shape, attention, oracle, monkeypatch):
    """The exports themselves are in test_export.py."""
    for module in (gaussian, inverse, numerics, soft):
        monkeypatch.setattr(module, 'is_exporting', lambda: True)
    case = inputs(shape)
    assert max(error(value_and_grads(attention, *case), value_and_grads(oracle, *case))) < 1e-6


@every_attention
@pytest.mark.parametrize('held, kernels', [(0, 0), (1, 11), (3, 6), (11, 1), (12, 1)])
def test_without_gradients_a_cpu_forms_the_kernel_once_for_so_many_heads(attention, oracle, held, kernels, monkeypatch):
    case = inputs((2, 11, 33, 12, 32))
    want, formed = oracle(*case), []

    def watched(x, y=None, ridge=0.0):
        formed.append(0 if y is None else x.size(1))
        return gaussian_kernel(x, y, ridge)

    monkeypatch.setattr(soft, 'gaussian_kernel', watched)
    monkeypatch.setattr(soft, 'HELD_ELEMENTS', held * 2 * 33 * 12)
    assert error([attention(*case)], [want])[0] < 1e-6 and formed == [0]  # gradients may be wanted
    formed.clear()
    with torch.no_grad():
        got = attention(*case)
    assert error([got], [want])[0] < 1e-6
    assert len(formed) == 1 + kernels and sum(formed) == 11 * (held > 0) and max(formed) <= held


@every_attention
@pytest.mark.parametrize('held', [0, 1, 3, 11])
def test_heads_may_share_values(attention, oracle, held, monkeypatch):
    q, b, v = inputs((2, 11, 33, 12, 32))
    v = v[:, :1]
    want = oracle(q, b, v.expand_as(q))
    monkeypatch.setattr(soft, 'HELD_ELEMENTS', held * 2 * 33 * 12)
    assert error([attention(q, b, v)], [want])[0] < 1e-6
    with torch.no_grad():
        got = attention(q, b, v)
    assert got.shape == want.shape and error([got], [want])[0] < 1e-6


@every_attention
def test_a_trace_holds_no_kernel_that_other_images_would_make_large(attention, oracle, monkeypatch):
    monkeypatch.setattr(soft, 'gaussian_kernel', lambda x, ridge=0.0: gaussian_kernel(x, ridge=ridge))  # nor a pair's
    with torch.no_grad():
        traced = torch.jit.trace(attention, inputs((1, 2, 33, 12, 32)), check_trace=False)
        case = inputs((3, 2, 80, 20, 32))
        assert error([traced(*case)], [oracle(*case)])[0] < 1e-6


@every_attention
@pytest.mark.parametrize('shape', SHAPES, ids=shape_id)
def test_float32_without_gradients_is_within_the_dense_noise(shape, attention, oracle):
    case = inputs(shape)
    want, rough = oracle(*case), oracle(*(t.float() for t in case))
    with torch.no_grad():
        got = attention(*(t.float() for t in case))
    assert error([got.double()], [want])[0] < 4 * error([rough.double()], [want])[0] + 1e-5


@every_attention
@pytest.mark.parametrize('shape', SHAPES, ids=shape_id)
def test_float32_is_within_the_dense_noise(shape, attention, oracle):
    case = inputs(shape)
    want = value_and_grads(oracle, *case)
    noise = error(value_and_grads(oracle, *case, dtype=torch.float32), want)
    got = error(value_and_grads(attention, *case, dtype=torch.float32), want)
    assert all(e < 4 * n + 1e-5 for e, n in zip(got, noise))


@every_attention
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=shape_id)
@pytest.mark.parametrize('shape', SHAPES, ids=shape_id)
def test_half_precision_loses_only_the_rounding_of_its_ends(shape, dtype, attention, oracle):
    case = [t.to(dtype) for t in inputs(shape)]
    want = value_and_grads(oracle, *case, dtype=torch.float64)
    assert attention(*case).dtype == dtype
    assert max(error(value_and_grads(attention, *case), want)) < 2 * torch.finfo(dtype).eps


@every_setting
@every_attention
def test_every_device_and_arithmetic_gives_float32(setting, attention, oracle):
    case = inputs((2, 3, 400, 40, 32))
    want = value_and_grads(oracle, *case)
    noise = error(value_and_grads(oracle, *case, dtype=torch.float32), want)
    with settings(setting) as device:
        got = value_and_grads(attention, *(t.to(device) for t in case), dtype=torch.float32)
    assert all(e < 4 * n + 1e-5 for e, n in zip(error(got, want), noise))


@every_attention
def test_arguments_by_keyword(attention, oracle):
    q, bottleneck, v = inputs((1, 2, 20, 6, 8))
    assert list(inspect.signature(attention).parameters) == ['q', 'bottleneck', 'v', 'iterations']
    with torch.autocast('cpu', torch.bfloat16):
        out = attention(v=v.float(), bottleneck=bottleneck.bfloat16(), q=q.half(), iterations=20)
    assert out.dtype == torch.float16
    assert error([out.double()], [oracle(q, bottleneck, v)])[0] < 0.02
    with pytest.raises(TypeError, match="'q'"):
        attention(bottleneck=bottleneck, v=v)


@every_attention
def test_non_contiguous_inputs(attention, oracle):
    q, bottleneck, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs((3, 2, 50, 9, 8)))
    assert not q.is_contiguous()
    want = value_and_grads(oracle, q, bottleneck, v)
    assert max(error(value_and_grads(attention, q, bottleneck, v), want)) < 1e-6


@every_attention
def test_values_wider_than_queries(attention, oracle):
    q, bottleneck, _ = inputs((1, 2, 20, 6, 8))
    v = tokens(1, 2, 20, 13, seed=2)
    torch.testing.assert_close(attention(q, bottleneck, v), oracle(q, bottleneck, v))


@every_attention
@pytest.mark.parametrize('spread', [0.0, 1e-4, 0.1])
def test_blank_and_nearly_blank_images(spread, attention, oracle, method):
    """All tokens alike: every kernel entry is nearly 1 and A has rank one, up to the noise."""
    case = inputs((2, 2, 49, 9, 32), spread)
    want = value_and_grads(oracle, *case)
    noise = error(value_and_grads(oracle, *case, dtype=torch.float32)[:1], want[:1])[0]
    got = value_and_grads(attention, *case, dtype=torch.float32)
    assert all(t.isfinite().all() for t in got)
    assert error(got[:1], want[:1])[0] < 4 * noise + 1e-3


@pytest.mark.parametrize('m', [1, 4])
def test_soft_norm_of_orthogonal_tokens_is_zero_as_published(m, method):
    """Where A is the identity (one bottleneck token, or distant ones) the iteration starts at αλ² = 2 and yields 0."""
    bottleneck = 100 * torch.eye(m, 4).expand(1, 1, m, 4)
    q, v = bottleneck[:, :, :1] + 0.1 * torch.randn(1, 1, 20, 4), torch.randn(1, 1, 20, 4)
    assert (dense.soft_norm_attention(q, bottleneck, v) == 0).all()
    assert (soft_norm_attention(q, bottleneck, v) == 0).all()


def test_soft_norm_of_a_single_bottleneck_token_is_zero_as_published(method):
    case = inputs((2, 3, 20, 1, 8))
    torch.testing.assert_close(soft_norm_attention(*case), torch.zeros_like(case[0]), rtol=0, atol=1e-6)


@every_attention
def test_an_image_does_not_depend_on_the_rest_of_its_batch(method, attention, oracle):
    images = [inputs((1, 3, 40, 16, 8), spread) for spread in (0.0, 0.1, 0.5, 1.0, 3.0)]
    together = attention(*(torch.cat(parts) for parts in zip(*images)))
    for i, image in enumerate(images):
        torch.testing.assert_close(together[i : i + 1], attention(*image), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize('spread', [0.0, 0.1, 0.5, 1.0, 3.0, 30.0])
@pytest.mark.parametrize('shape', SHAPES, ids=shape_id)
def test_starting_scales_are_the_published_ones(shape, spread):
    _, bottleneck, _ = inputs(shape, spread)
    kernel = gaussian_kernel(bottleneck)
    want = dense.gaussian_kernel(bottleneck, bottleneck)
    torch.testing.assert_close(
        soft_alpha(gaussian_kernel(bottleneck, ridge=RIDGE).sum(-1, True) - RIDGE), dense.soft_alpha(want)
    )
    got = soft_norm_alpha(kernel, kernel.sum(-1, keepdim=True))
    torch.testing.assert_close(got.flatten(), torch.stack([dense.soft_norm_alpha(image) for image in want]))


@every_attention
@pytest.mark.parametrize('shape', [(1, 1, 5, 1, 3), (2, 1, 6, 4, 3), (1, 2, 2, 5, 4)], ids=shape_id)
def test_gradcheck_where_converged(shape, attention, oracle, method):
    case = [t.requires_grad_() for t in inputs(shape, spread=2.0)]
    assert torch.autograd.gradcheck(attention, case, fast_mode=True)


@every_attention
@pytest.mark.parametrize('shape', [(1, 2, 20, 4, 3), (2, 1, 30, 9, 16)], ids=shape_id)
def test_where_converged_it_is_the_pseudoinverse_with_its_gradient(shape, attention, oracle, monkeypatch):
    monkeypatch.setattr(dense, 'newton_inverse', lambda matrix, *_: torch.linalg.pinv(matrix, hermitian=True))
    case = inputs(shape, spread=2.0)
    assert max(error(value_and_grads(attention, *case), value_and_grads(oracle, *case))) < 1e-6


@every_attention
def test_tokens_may_lie_anywhere(attention, oracle):
    q, bottleneck, v = inputs((1, 2, 100, 30, 32), 1.7)
    q, bottleneck = ((t + 100).float().double() for t in (q, bottleneck))
    want = value_and_grads(oracle, q, bottleneck, v)
    noise = error(value_and_grads(oracle, q - 100, bottleneck - 100, v, dtype=torch.float32), want)
    got = error(value_and_grads(attention, q, bottleneck, v, dtype=torch.float32), want)
    assert all(e < 4 * n + 1e-5 for e, n in zip(got, noise))


@every_attention
def test_no_images(attention, oracle):
    q, bottleneck, v = (torch.ones(0, 2, n, 8, requires_grad=True) for n in (20, 6, 20))
    out = attention(q, bottleneck, v)
    assert out.shape == (0, 2, 20, 8)
    out.sum().backward()


@every_attention
@pytest.mark.parametrize('m', [9, 30])
def test_what_is_not_a_number_stays_so(m, attention, oracle):
    q, bottleneck, v = (t.float() for t in inputs((2, 1, 40, m, 8)))
    want = attention(q, bottleneck, v)[1]
    q[0, 0, 3, 2] = float('nan')
    got = attention(q, bottleneck, v)
    assert got[0].isnan().all()
    torch.testing.assert_close(got[1], want)


def test_scale_of_a_kernel_with_and_without_its_ridge():
    kernel = gaussian_kernel(tokens(2, 3, 9, 8))
    want = dense.soft_alpha(kernel)
    torch.testing.assert_close(soft_alpha(kernel.sum(-1, keepdim=True)), want)
    torch.testing.assert_close(soft_alpha((kernel + RIDGE * torch.eye(9)).sum(-1, keepdim=True) - RIDGE), want)
