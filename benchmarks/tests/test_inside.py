"""Hooks see what the papers' formulas say, and the control switches off attention alone."""
import pytest
import torch
import torch.nn.functional as F

from benchmarks.inside import attention_norms, inverted_matrices, products, without_attention
from mmsoft.attention import Attention, Site, SOFTAttention, build_attention
from mmsoft.backbones import SOFT, SimADeiT, SimAXCiT
from mmsoft.utils import UsageError

HW, SITE, N, M = (6, 8), Site(32, 2, (6, 8), ratio=2), 48, 12
ARCH = dict(embed_dims=[32, 32, 64, 64], num_heads=[1, 2, 2, 2], depths=[1, 2, 1, 1])


class OnTokens(torch.nn.Module):
    """A network of one attention."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x, HW)


def dense(attention, x, norm=None):
    """The attention matrix of shape (h, n, n), written as the papers write it."""
    kind = type(attention).__name__
    if norm is not None:
        q = (attention.query(x) * attention.scale).unflatten(2, (2, 16)).transpose(1, 2)
        b = attention.bottleneck(q[0, :, -N:].transpose(1, 2).unflatten(2, HW))
        a, p = (torch.exp(-0.5 * torch.cdist(b, y)**2) for y in (b, q[0]))
        scale = torch.diag_embed(a.sum(-1)**-0.5) if norm else torch.eye(M).double()
        inverse = torch.linalg.inv(a + (0 if norm else 0.01) * torch.eye(M).double())
        return p.transpose(1, 2) @ scale @ inverse @ scale @ p
    q, k, _ = (t[0] for t in attention.qkv(x, HW))
    if kind == 'SimAAttention':
        q, k = (t / t.abs().sum(-2, keepdim=True) for t in (q, k))
        return q @ k.transpose(1, 2)
    if kind == 'PerformerAttention':
        q, k = (torch.exp(t / 2 @ attention.features.T - (t / 2).square().sum(-1, keepdim=True) / 2) for t in (q, k))
        weights = q @ k.transpose(1, 2)
        return weights / weights.sum(-1, keepdim=True)
    if kind == 'NystromformerAttention':
        q, k = q / 2, k / 2
        maps = (t[:, -N:].transpose(1, 2).unflatten(2, HW) for t in (q, k))
        means = [F.avg_pool2d(t, 2).flatten(2).transpose(1, 2) for t in maps]
        f, a, b = (x @ y.transpose(1, 2) for x, y in ((q, means[1]), means, (means[0], k)))
        return f.softmax(-1) @ torch.linalg.pinv(a.softmax(-1)) @ b.softmax(-1)
    return (q @ k.transpose(1, 2) / 4).softmax(-1)


@pytest.mark.parametrize('extra', [0, 1])
@pytest.mark.parametrize('kind, options', [
    ('SoftmaxAttention', {}), ('PerformerAttention', {}), ('NystromformerAttention', dict(iterations=60)),
    ('SimAAttention', {}), ('SOFTAttention', dict(norm=False, newton_iterations=60)),
    ('SOFTAttention', dict(norm=True, newton_iterations=60))
], ids=lambda value: value if isinstance(value, str) else '-'.join(map(str, value.values())))
def test_a_row_is_that_of_the_dense_matrix(kind, options, extra):
    torch.manual_seed(0)
    attention = build_attention(dict(type=kind, **options), SITE).double().eval()
    x = torch.randn(1, extra + N, 32).double()
    with torch.no_grad():
        expected = dense(attention, x, options.get('norm'))
    product, = products(OnTokens(attention), x)
    assert product.hw == HW and product.extra == extra
    for token in (0, 29):
        row = product.row(token)
        assert row.shape == (1, 2, *HW)
        torch.testing.assert_close(row.flatten(2)[0], expected[:, extra + token, extra:], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize('attention_norm', [False, True])
@torch.no_grad()
def test_matrices_and_norms_are_those_of_whole_matrices(attention_norm):
    torch.manual_seed(0)
    network, images = SOFT(ARCH, attention_norm).double().eval(), 3 * torch.randn(1, 3, 32, 64).double()
    seen = products(network, images, SOFTAttention)
    norms = {}
    for product, inverted in zip(seen, inverted_matrices(network, images)):
        eye = torch.eye(product.values.size(2)).double().expand(*product.values.shape[:2], -1, -1)
        norms.setdefault(product.stage, []).append(torch.linalg.matrix_norm(product.multiply(eye), 2).mean())
        distances = torch.cdist(product.keys[0], product.keys[0])
        ridge = (0 if attention_norm else 0.01) * torch.eye(distances.size(-1))
        torch.testing.assert_close(inverted.matrix, torch.exp(-0.5 * distances**2) + ridge)
        assert inverted.stage == product.stage and inverted.alpha.shape == (product.keys.size(1), 1)
    assert [product.stage for product in seen] == [1, 2, 2, 3]
    expected = [sum(each).item() / len(each) for each in norms.values()]
    assert attention_norms(network, images) == pytest.approx(expected, rel=1e-3)


def test_a_network_without_such_attention_gets_a_sentence():
    with pytest.raises(UsageError, match='SimADeiT has no SOFTAttention'):
        products(SimADeiT(dict(embed_dims=32, num_heads=2, depth=1), out_indices=(0, )), torch.zeros(1, 3, 32, 32),
                 SOFTAttention)


@pytest.mark.parametrize('extra', [0, 1])
@torch.no_grad()
def test_without_attention_soft_convolves_its_values(extra):
    torch.manual_seed(0)
    attention, x = build_attention(dict(type='SOFTAttention'), SITE), torch.randn(2, extra + N, 32)
    network = OnTokens(attention)
    before = network(x)
    with without_attention(network) as count:
        found = network(x)
    v = attention.value(x[:, extra:]).transpose(1, 2).unflatten(2, HW)
    v = F.conv2d(v, attention.conv.weight.repeat_interleave(16, 0), padding=1, groups=32).flatten(2).transpose(1, 2)
    torch.testing.assert_close(found, attention.proj(F.pad(v, (0, 0, extra, 0))))
    assert count == 1 and not torch.allclose(found, before)
    torch.testing.assert_close(network(x), before)


@torch.no_grad()
def test_without_attention_in_networks():
    images = torch.randn(1, 3, 64, 64)
    soft = SOFT(ARCH).eval()
    with without_attention(soft, [2]) as in_stage_2, without_attention(soft) as everywhere:
        assert (in_stage_2, everywhere) == (2, 4)  # the last stage keeps its softmax
    xcit = SimAXCiT(dict(embed_dims=32, num_heads=2, depth=2, patch_size=16), out_indices=(1, )).eval()
    before = xcit(images)[0]
    with without_attention(torch.nn.Sequential(xcit)) as count:
        assert count == 2 and not torch.allclose(xcit(images)[0], before)  # its class attention is left alone
    with without_attention(SOFT(ARCH, attention=dict(type='SoftmaxAttention'))) as count:
        assert count == 5
    with without_attention(torch.nn.Linear(1, 1)) as count:
        assert count == 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in soft.modules())
    assert isinstance(soft.stages[0].blocks[0].attn, Attention)
