"""The attentions that the papers compare with: identities that need no data, and their size in SOFT-Tiny."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mmsoft.attention import (
    CosFormerAttention,
    LinformerAttention,
    NystromformerAttention,
    PerformerAttention,
    Site,
    SoftmaxAttention,
)
from mmsoft.attention.cosformer import _waves
from mmsoft.attention.nystromformer import pseudoinverse
from mmsoft.attention.performer import orthogonal_gaussian, performer_product
from mmsoft.backbones import SOFT, SimACvT
from mmsoft.backbones.sima_cvt import ConvProjection

HW, SITE = (6, 10), Site(32, 2, (6, 10))


def tokens(extra=0, scale=1.0):
    return scale * torch.randn(2, extra + 60, 32, dtype=torch.float64)


def with_weights_of(attn, other):
    attn.double().load_state_dict(other.double().state_dict(), strict=False)
    return attn


@torch.no_grad()
def test_performer_becomes_softmax_with_many_features():
    softmax, x = SoftmaxAttention(SITE), tokens(1)
    want = softmax.double()(x, HW)
    errors = []
    for features in (16, 256, 16384):
        torch.manual_seed(0)
        performer = with_weights_of(PerformerAttention(SITE, features), softmax)
        errors.append(((performer(x, HW) - want).norm() / (want - want.mean(1, keepdim=True)).norm()).item())
    assert errors[0] > errors[1] and errors[2] < errors[1] / 5  # 8 by theory: the root of their number


def test_features_are_orthogonal():
    features = orthogonal_gaussian(40, 16)
    lengths = features.norm(dim=1)
    assert_close(features[:16] @ features[:16].T, torch.diag(lengths[:16] ** 2), rtol=1e-4, atol=1e-4)
    assert features.shape == (40, 16) and lengths.std() > 0.1


@torch.no_grad()
def test_features_are_saved():
    source, twin, x = PerformerAttention(SITE).double(), PerformerAttention(SITE).double(), tokens()
    twin.load_state_dict(source.state_dict())
    assert torch.equal(twin(x, HW), source(x, HW))


def test_performer_of_queries_far_from_all_keys():
    """Of values that are all the same, it is that value, however small the weights."""
    q, k = 10 * torch.randn(2, 1, 2, 60, 16, dtype=torch.float64)
    value = torch.randn(16, dtype=torch.float64).expand(1, 2, 60, 16)
    assert_close(performer_product(q, k, value, orthogonal_gaussian(44, 16).double()), value)


@torch.no_grad()
def test_nystromformer_with_all_tokens_as_landmarks_is_softmax():
    softmax = SoftmaxAttention(SITE)
    nn.init.normal_(softmax.qkv.weight, std=0.5)  # a matrix that is far from singular
    nystromformer, x = with_weights_of(NystromformerAttention(SITE, iterations=40), softmax), tokens()
    assert_close(nystromformer(x, HW), softmax(x, HW), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_nystromformer_with_a_class_token():
    """Eq. 13 of 2102.03902, dense; the class token attends and is attended to, but is in no window."""
    attn, x = NystromformerAttention(SITE._replace(ratio=2), iterations=40).double(), tokens(1)
    nn.init.normal_(attn.qkv.weight, std=0.5)
    q, k, v = attn.split_heads(x, HW)
    few_q, few_k = (t[:, :, 1:].unflatten(2, (3, 2, 5, 2)).mean((3, 5)).flatten(2, 3) for t in (q, k))
    left, middle, right = (((a @ b.mT) / 4).softmax(-1) for a, b in ((q, few_k), (few_q, few_k), (few_q, k)))
    out = left @ torch.linalg.pinv(middle) @ right @ v
    assert_close(attn(x, HW), attn.proj(out.transpose(1, 2).flatten(2)), rtol=1e-5, atol=1e-6)


def test_pseudoinverse():
    matrix = (3 * torch.randn(3, 2, 20, 20, dtype=torch.float64)).softmax(-1)
    assert_close(pseudoinverse(matrix, 40), torch.linalg.pinv(matrix), rtol=1e-6, atol=1e-6)
    # An image's start, and so its result, does not depend on the others, other than in the original.
    assert_close(pseudoinverse(matrix, 6)[:1], pseudoinverse(matrix[:1], 6), rtol=0, atol=1e-12)


@torch.no_grad()
def test_linformer_that_keeps_all_tokens_is_softmax():
    softmax, x, seen = SoftmaxAttention(SITE).double(), tokens(1), []
    linformer = LinformerAttention(SITE).double()
    linformer.reduce.weight.data = torch.eye(16, dtype=torch.float64)[..., None, None]
    reduced = linformer.kv(torch.cat([x[:, :1], linformer.norm(x[:, 1:])], dim=1))  # the class token is as it was
    linformer.kv.register_forward_hook(lambda module, args, out: seen.append(out))
    linformer(x, HW)
    assert_close(seen[0], reduced)
    linformer.norm = nn.Identity()
    for name, parameter in (('weight', softmax.qkv.weight), ('bias', softmax.qkv.bias)):
        setattr(linformer.q, name, nn.Parameter(parameter[:32]))
        setattr(linformer.kv, name, nn.Parameter(parameter[32:]))
    linformer.proj = softmax.proj
    assert_close(linformer(x, HW), softmax(x, HW))


@pytest.mark.parametrize('extra', [0, 1])
@pytest.mark.parametrize('reweight', [False, True])
@torch.no_grad()
def test_cosformer_is_a_mean_weighted_by_positions(reweight, extra):
    """Dense, in the other order of products; of values that are all the same, it is that value."""
    attn, x = CosFormerAttention(SITE, reweight).double(), tokens(extra)
    q, k, v = (t.relu() if i < 2 else t for i, t in enumerate(attn.split_heads(x, HW)))
    rows, columns = (t.flatten() * torch.pi / 2 for t in torch.meshgrid(torch.arange(6) / 6, torch.arange(10) / 10))
    rows, columns = (torch.cat([torch.zeros(extra), t]) for t in (rows, columns))  # where class tokens stand
    weights = q @ k.mT
    if reweight:
        weights = weights * (rows[:, None] - rows).cos() * (columns[:, None] - columns).cos()
    weights = weights / weights.sum(-1, keepdim=True)
    assert_close(attn(x, HW), attn.proj((weights @ v).transpose(1, 2).flatten(2)))
    nn.init.zeros_(attn.qkv.weight[64:])
    assert_close(attn(x, HW), attn.proj(attn.qkv.bias[64:]).expand_as(x))


def test_cosformer_keeps_its_positions_in_half_precision():
    """bfloat16 counts to 256 alone."""
    like = torch.empty(0)
    assert torch.equal(_waves((1, 600), 1, like.bfloat16()), _waves((1, 600), 1, like).bfloat16())


@pytest.mark.parametrize(
    'name, millions',
    [
        ('SoftmaxAttention', 13.30),
        ('LinformerAttention', 13.41),
        ('PerformerAttention', 13.30),
        ('NystromformerAttention', 13.30),
    ],
)
def test_parameters_in_the_body_of_soft_tiny(name, millions):
    """13M in 2110.11945, Table 1; the digits are a hand count of the construction."""
    model = SOFT('tiny', attention=dict(type=name), out_type='cls_token')
    assert sum(p.numel() for p in model.parameters()) + 513 * 1000 == pytest.approx(millions * 1e6, abs=6e3)


@pytest.mark.parametrize('name', ['CosFormerAttention', 'LinformerAttention', 'NystromformerAttention'])
def test_projections_that_are_not_used(name):
    model = SimACvT(dict(embed_dims=[8] * 3, num_heads=[1] * 3, depths=[1] * 3), attention=dict(type=name))
    assert not any(isinstance(module, ConvProjection) for module in model.modules())


@pytest.mark.parametrize('scale, most', [(0.05, 1), (0.0005, 1e-3)])
@torch.no_grad()
def test_small_weights_of_cosformer_have_a_mean_too(scale, most):
    attn, x = CosFormerAttention(SITE).double(), tokens(scale=scale)
    nn.init.zeros_(attn.qkv.bias)
    q, k, v = (t.unflatten(2, (2, -1)).transpose(1, 2) for t in (x @ attn.qkv.weight.T + attn.qkv.bias).chunk(3, -1))
    weights = q.relu() @ k.relu().mT
    assert 1e-6 < weights.sum(-1).max() < most
    mean = (weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)) @ v
    assert_close(attn(x, HW), attn.proj(mean.transpose(1, 2).flatten(2)))
