"""Hooks see what the papers' formulas say, and the control switches off attention alone."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks.inside import bottlenecks
from mmsoft.attention import Site, build_attention
from mmsoft.attention.measure import without_attention
from mmsoft.backbones import SOFT, SimADeiT
from mmsoft.ops import newton_inverse
from mmsoft.utils import UsageError

HW, SITE, N = (6, 8), Site(32, 2, (6, 8), ratio=2), 48
ARCH = dict(embed_dims=[32, 32, 64, 64], num_heads=[1, 2, 2, 2], depths=[1, 2, 1, 1])


class OnTokens(torch.nn.Module):
    """A network of one attention."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x, HW)


def convolved(attention, v):
    """The depthwise convolution of values (B, n, C), one filter per head."""
    filters = attention.conv.weight.repeat_interleave(16, 0)
    return F.conv2d(v.mT.unflatten(2, HW), filters, padding=1, groups=32).flatten(2).mT


@pytest.mark.parametrize('extra', [0, 1])
@pytest.mark.parametrize('norm', [False, True])
@pytest.mark.parametrize('steps', [60, 4])
@torch.no_grad()
def test_what_is_seen_makes_the_product(steps, norm, extra):
    """A from the hooks, its inverse of so many steps, multiplied as the papers write it, gives what SOFT computes."""
    torch.manual_seed(0)
    attention = build_attention(dict(type='SOFTAttention', norm=norm, newton_iterations=steps), SITE).double().eval()
    x = torch.randn(2, extra + N, 32).double()
    (seen,) = bottlenecks(OnTokens(attention), x)
    assert seen.stage == 0 and seen.matrix.shape == (2, 12, 12) and seen.alpha.shape == (2, 1)
    queries = (attention.query(x[:1, extra:]) * attention.scale).unflatten(2, (2, 16)).transpose(1, 2)
    tokens = attention.bottleneck(queries[0].mT.unflatten(2, HW))
    p, row_sums = torch.exp(-(tokens.unsqueeze(2) - queries[0].unsqueeze(1)).square().sum(-1) / 2), seen.matrix.sum(-1)
    scale = torch.diag_embed(row_sums**-0.5) if norm else torch.eye(12).double()
    inverse = newton_inverse(seen.matrix, seen.alpha.unsqueeze(-1), steps)
    assert torch.allclose(inverse, torch.linalg.inv(seen.matrix)) == (steps == 60)
    matrix = p.mT @ scale @ inverse @ scale @ p
    v = attention.value(x[:1, extra:])
    product = (matrix @ v[0].unflatten(1, (2, 16)).transpose(0, 1)).transpose(0, 1).flatten(1)
    if not extra:
        torch.testing.assert_close(
            attention.proj(product + convolved(attention, v)[0]), attention(x, HW)[0], rtol=1e-5, atol=1e-8
        )


def test_stages():
    assert [seen.stage for seen in bottlenecks(SOFT(ARCH), torch.randn(2, 3, 32, 64))] == [0, 1, 1, 2]


def test_a_network_without_such_attention_gets_a_sentence():
    with pytest.raises(UsageError, match='SimADeiT has no SOFTAttention'):
        bottlenecks(SimADeiT(dict(embed_dims=32, num_heads=2, depth=1), out_indices=(0,)), torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize('extra', [0, 1])
@torch.no_grad()
def test_without_attention_soft_convolves_its_values(extra):
    torch.manual_seed(0)
    attention, x = build_attention(dict(type='SOFTAttention'), SITE), torch.randn(2, extra + N, 32)
    network = OnTokens(attention)
    before = network(x)
    with without_attention(network) as count:
        found = network(x)
    v = convolved(attention, attention.value(x[:, extra:]))
    torch.testing.assert_close(found, attention.proj(F.pad(v, (0, 0, extra, 0))))
    assert count == 1 and not torch.allclose(found, before)
    torch.testing.assert_close(network(x), before)
