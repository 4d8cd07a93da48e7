"""Each attention against its formula, in float64."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mmsoft.attention import (
    EfficientAttention,
    GaussianAttention,
    SimAAttention,
    SimAClassAttention,
    Site,
    SOFTAttention,
    SoftmaxAttention,
    SoftmaxClassAttention,
    build_attention,
)


def test_the_norm_of_class_attention_is_checked():
    with pytest.raises(ValueError, match='p must be one of 1, 2, None; got 3'):
        build_attention(dict(type='SimAClassAttention', p=3), SITE, class_token=True)


SITE = Site(32, 2, (6, 10))


def inputs(channels=32, tokens=60):
    torch.manual_seed(0)
    return torch.randn(2, tokens, channels, dtype=torch.float64)


def heads(x):
    return x.unflatten(2, (2, -1)).transpose(1, 2)


@pytest.mark.parametrize(
    'attention, product',
    [
        (SoftmaxAttention, lambda q, k, v: (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v),
        (EfficientAttention, lambda q, k, v: (q.softmax(-1) @ k.softmax(-2).mT) @ v),
        (partial(SimAAttention, p=None), lambda q, k, v: q @ k.mT @ v),
        (
            SimAAttention,
            lambda q, k, v: (q / q.abs().sum(-2, keepdim=True)) @ (k / k.abs().sum(-2, keepdim=True)).mT @ v,
        ),
    ],
)
@torch.no_grad()
def test_products(attention, product):
    attn, x = attention(Site(32, 2, (6, 10))).double(), inputs()
    q, k, v = (heads(t) for t in nn.functional.linear(x, attn.qkv.weight, attn.qkv.bias).chunk(3, -1))
    assert_close(attn(x, (6, 10)), attn.proj(product(q, k, v).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(
    'first, all_tokens',
    [(partial(SimAClassAttention, p=None), partial(SimAAttention, p=None)), (SoftmaxClassAttention, SoftmaxAttention)],
)
@torch.no_grad()
def test_attentions_of_the_class_token(first, all_tokens):
    first, all_tokens, x = first(SITE).double(), all_tokens(SITE).double(), inputs(tokens=61)
    first.load_state_dict(all_tokens.state_dict())
    assert_close(first(x, (6, 10)), all_tokens(x, (6, 10))[:, :1])


@pytest.mark.parametrize(
    'normalise, of_kernel',
    [
        ('none', lambda kernel: kernel),
        ('softmax', lambda kernel: kernel.softmax(-1)),
        ('mean', lambda kernel: kernel / kernel.sum(-1, keepdim=True)),
    ],
)
@torch.no_grad()
def test_exact_gaussian_attention(normalise, of_kernel):
    attn, x = GaussianAttention(SITE, normalise).double(), inputs()
    q, v = heads(attn.query(x)), heads(attn.value(x))
    kernel = of_kernel((-torch.cdist(q, q).square() / (2 * 16**0.5)).exp())
    assert_close(attn(x, (6, 10)), attn.proj((kernel @ v).transpose(1, 2).flatten(2)))


@torch.no_grad()
def test_soft_attention_approximates_the_exact_one():
    """With all queries as bottleneck tokens, no LayerNorm or GELU on them and no convolution, it is the exact one."""
    torch.manual_seed(0)
    soft = SOFTAttention(Site(32, 2, (6, 10)), norm=False, sampling='biased', newton_iterations=40).double()
    exact = GaussianAttention(Site(32, 2, (6, 10))).double()
    exact.load_state_dict(soft.state_dict(), strict=False)
    soft.bottleneck.norm = soft.bottleneck.act = nn.Identity()
    nn.init.zeros_(soft.conv.weight)
    for linear in (soft.query, exact.query):
        linear.weight.data = 9 * torch.eye(32, dtype=torch.float64)  # tokens far apart: only the ridge differs
    x = inputs()
    assert_close(soft(x, (6, 10)), exact(x, (6, 10)), rtol=0.02, atol=0.02)


@pytest.mark.parametrize('extra', [1, 2])
@torch.no_grad()
def test_class_tokens_take_no_part_in_the_convolution_of_soft(extra):
    attn, x = SOFTAttention(SITE).double(), inputs(tokens=60 + extra)
    attn.attended.register_forward_hook(lambda module, args, out: out * 0)
    out = attn(x, (6, 10))
    assert_close(out[:, extra:], attn(x[:, extra:], (6, 10)))
    assert_close(out[:, :extra], attn.proj.bias.expand_as(out[:, :extra]))


@pytest.mark.parametrize('norm', [False, True])
@pytest.mark.parametrize('limit', [None, 8])
@torch.no_grad()
def test_steps_of_the_inverse_count(norm, limit):
    x, outs = inputs(), []
    for steps in (1, 20):
        torch.manual_seed(0)
        attn = SOFTAttention(SITE, norm, newton_iterations=steps, bottleneck_limit=limit).double()
        attn.attended.register_forward_hook(lambda module, args, out: outs.append(out))
        attn(x, (6, 10))
    assert (outs[0] - outs[1]).norm() > 0.1 * outs[1].norm()
