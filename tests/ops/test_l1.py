"""SimA's product against its dense formula: values, gradients, orders, masks and half precision."""

import dense
import pytest
import torch
from devices import cpu_autocast
from torch.testing import assert_close

from mmsoft.ops import l1_attention, l1_class_attention


def qkv(n, m, d, c, dtype=torch.float64, batch=2, heads=3):
    torch.manual_seed(0)
    return [torch.randn(batch, heads, *shape, dtype=dtype) for shape in ((n, d), (m, d), (m, c))]


@pytest.mark.parametrize('order', ['auto', 'tokens', 'channels'])
@pytest.mark.parametrize('n, m, d, c', [(5, 5, 8, 8), (50, 50, 8, 8), (40, 10, 8, 8), (9, 9, 4, 6)])
def test_dense_reference(n, m, d, c, order):
    ours, theirs = ([t.clone().requires_grad_() for t in qkv(n, m, d, c)] for _ in range(2))
    out, expected = l1_attention(*ours, order=order), dense.l1_attention(*theirs)
    assert_close(out, expected, rtol=1e-10, atol=1e-14)
    grad = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, ours, grad), torch.autograd.grad(expected, theirs, grad)):
        assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize('p', [1, 2])
@pytest.mark.parametrize('order', ['tokens', 'channels'])
def test_gradcheck(p, order):
    inputs = [t.requires_grad_() for t in qkv(4, 3, 2, 2, batch=1, heads=2)]
    assert torch.autograd.gradcheck(lambda *x: l1_attention(*x, p=p, order=order), inputs)


@pytest.mark.parametrize(
    'n, m, d, expected',
    [(7, 7, 8, 'tokens'), (8, 8, 8, 'channels'), (9, 9, 8, 'channels'), (100, 4, 8, 'tokens'), (100, 5, 8, 'channels')],
)
def test_auto_takes_the_cheaper_order(n, m, d, expected):
    inputs = qkv(n, m, d, d, dtype=torch.float32)
    assert torch.equal(l1_attention(*inputs), l1_attention(*inputs, order=expected))


@pytest.mark.parametrize('c, expected', [(2, 'channels'), (7, 'channels'), (8, 'tokens'), (32, 'tokens')])
def test_the_cheaper_order_depends_on_the_width_of_values(c, expected):
    """Of 8 queries and keys in 9 channels: 64 · (9 + c) operations by tokens, 144 · c by channels."""
    inputs = qkv(8, 8, 9, c, dtype=torch.float32)
    assert torch.equal(l1_attention(*inputs), l1_attention(*inputs, order=expected))


def test_l2_is_torchs_normalize():
    q, k, v = qkv(20, 20, 4, 4)
    q[..., 1] = 0
    q_hat, k_hat = (torch.nn.functional.normalize(t, p=2, dim=-2) for t in (q, k))
    assert_close(l1_attention(q, k, v, p=2), q_hat @ (k_hat.transpose(-2, -1) @ v))


def test_without_a_norm_it_is_the_plain_product():
    q, k, v = qkv(20, 20, 4, 5, batch=1)
    assert_close(l1_attention(q, k, v, p=None), q @ k.transpose(-2, -1) @ v)


@pytest.mark.parametrize('order', ['tokens', 'channels'])
@pytest.mark.parametrize('scale', [0, 1e-14])
def test_dead_channels_are_divided_by_eps(order, scale):
    q, k, v = qkv(6, 6, 4, 4)
    q[..., 1] *= scale
    k[..., 2] *= scale
    q.requires_grad_()
    out = l1_attention(q, k, v, order=order)
    assert_close(out, dense.l1_attention(q, k, v))
    assert_close(l1_attention(q, k, v, order=order, eps=9.0), dense.l1_attention(q, k, v, eps=9.0))
    assert torch.autograd.grad(out.sum(), q)[0].isfinite().all()


@pytest.mark.parametrize('order', ['tokens', 'channels'])
def test_masked_tokens_do_not_exist(order):
    q, k, v = qkv(10, 10, 4, 4)
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[0, 6:] = False
    out = l1_attention(q, k, v, mask, order=order)
    assert_close(out[:1, :, :6], dense.l1_attention(q[:1, :, :6], k[:1, :, :6], v[:1, :, :6]))
    assert_close(out[1:], dense.l1_attention(q[1:], k[1:], v[1:]))
    assert not out[0, :, 6:].any()


@pytest.mark.parametrize('scale', [1, 1e-9])
def test_class_attention_is_the_first_row(scale):
    inputs = qkv(10, 10, 4, 4)
    inputs[0][..., 1] *= scale  # a dead channel
    assert_close(l1_class_attention(*inputs), dense.l1_attention(*inputs, eps=1e-6)[:, :, :1])


def by_channels(q, k, v):
    q, k = (t.double() / t.double().abs().sum(-2, keepdim=True) for t in (q, k))
    return q @ (k.transpose(-2, -1) @ v.double())


@pytest.mark.parametrize('n', [196, 100 * 168])  # 224² in patches of 16, 800×1344 in patches of 8
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_autocast_loses_nothing(dtype, n):
    q, k, v = (t.to(dtype) for t in qkv(n, n, 48, 48, batch=1, heads=1))
    with cpu_autocast(dtype):
        outs = l1_attention(q, k, v), l1_class_attention(q, k, v)
        assert l1_attention(q.double(), k.double(), v.double()).dtype == torch.float64
    expected = by_channels(q, k, v)
    for out, want in zip(outs, (expected, expected[:, :, :1])):
        assert out.dtype == torch.float32
        assert (out - want).norm() < 2e-6 * want.norm()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_loses_only_the_rounding_of_the_result(dtype):
    q, k, v = (t.to(dtype) for t in qkv(16800, 16800, 48, 48, batch=1, heads=1))
    out, want = l1_attention(q, k, v), by_channels(q, k, v)
    assert out.dtype == dtype
    info = torch.finfo(dtype)
    rounding = torch.maximum(want.abs(), torch.tensor(info.tiny)) * info.eps
    assert ((out - want).abs() < 0.51 * rounding + 1e-6 * want.abs().max()).all()


def test_half_precision_gradients_are_finite():
    inputs = [t.requires_grad_() for t in qkv(16800, 16800, 16, 16, torch.float16, batch=1, heads=1)]
    out = l1_attention(*inputs)
    for grad in torch.autograd.grad(out.float().sum() * 2**10, inputs):
        assert grad.isfinite().all() and grad.any()


def test_unknown_order():
    with pytest.raises(ValueError, match='auto, tokens, channels'):
        l1_attention(*qkv(4, 4, 2, 2), order='rows')


@pytest.mark.parametrize('order', ['tokens', 'channels'])
@pytest.mark.parametrize('scale', [1e-11, 1e10])
def test_gradients_of_small_and_large_channels(order, scale):
    """The square of both norms' product is no float32 number."""
    q, k, v, grad = torch.randn(4, 2, 2, 30, 8)
    inputs = [t.requires_grad_() for t in (scale * q, scale * k, v)]
    got = torch.autograd.grad(l1_attention(*inputs, order=order), inputs, grad)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    want = torch.autograd.grad(dense.l1_attention(*wide), wide, grad.double())
    assert max((a - b).abs().max() / b.abs().max() for a, b in zip(got, want)) < 1e-5


@pytest.mark.parametrize('order', ['tokens', 'channels'])
def test_second_derivatives_of_a_channel_of_zeros(order):
    inputs = [t.index_fill(3, torch.tensor(0), 0).requires_grad_() for t in torch.randn(3, 1, 1, 9, 4)]
    grads = torch.autograd.grad(l1_attention(*inputs, order=order).square().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(grad.sum() for grad in grads), inputs)
    assert all(t.isfinite().all() for t in second)
