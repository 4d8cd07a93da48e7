"""Feed-forward networks in runs of tokens, and maps that convolutions need not copy."""

import pytest
import torch

from mmsoft.attention import Site, SoftmaxAttention
from mmsoft.layers import blocks
from mmsoft.layers.blocks import FFN, PostNormBlock, PreNormBlock
from mmsoft.layers.maps import to_map, to_tokens
from mmsoft.layers.xcit import XCiTBlock


def attention():
    return SoftmaxAttention(Site(64, 2, (14, 14)))


@pytest.mark.parametrize('n', [0, 1, 7, 8, 9, 40])
@pytest.mark.parametrize('batch', [0, 1, 2])
@torch.no_grad()
def test_runs_cover_all_tokens_once(n, batch, monkeypatch):
    monkeypatch.setattr(blocks, 'RUN_ELEMENTS', 2 * 8 * 16)
    module, x = FFN(4), torch.randn(batch, n, 4)
    lengths = []
    module.layers[1].register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].size(1)))
    torch.testing.assert_close(module(x), module.layers(x), rtol=0, atol=1e-6)
    assert sum(lengths[:-1]) == n and max(lengths[:-1]) <= (8 if batch == 2 else 40)


@torch.no_grad()
def test_traced_graphs_hold_no_number_of_runs(monkeypatch):
    monkeypatch.setattr(blocks, 'RUN_ELEMENTS', 16 * 8)
    module = FFN(4).eval()
    traced = torch.jit.trace(module, torch.randn(1, 20, 4))
    x = torch.randn(1, 50, 4)
    torch.testing.assert_close(traced(x), module(x))


@pytest.mark.parametrize('make', [
    lambda: PostNormBlock(attention(), 64),
    lambda: PreNormBlock(attention(), 64),
    lambda: XCiTBlock(attention(), 64),
], ids=['post-norm', 'pre-norm', 'XCiT'])  # yapf: disable
def test_large_maps_are_the_same_with_and_without_gradients(make):
    """With gradients, tokens are not taken in chunks."""
    torch.manual_seed(0)
    block, x = make().eval(), torch.randn(1, 72 * 72, 64)
    with torch.no_grad():
        chunked = block(x, (72, 72))
    torch.testing.assert_close(chunked, block(x, (72, 72)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('block', [PreNormBlock, XCiTBlock])
@torch.no_grad()
def test_an_image_is_dropped_as_a_whole(block):
    torch.manual_seed(0)
    block = block(attention(), 64, drop_path_rate=0.5).train()
    block.attn.forward = lambda x, *hw: torch.zeros_like(x)
    x = torch.randn(8, 2048, 64)
    changed = (block(x, (32, 64)) != x).any(-1).float().mean(1)
    assert set(changed.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize('block, norms', [(PostNormBlock, 2), (PreNormBlock, 0), (XCiTBlock, 0)])
@torch.no_grad()
def test_every_branch_has_dropout(block, norms):
    """Without branches, pre-norm blocks do nothing, and post-norm blocks normalise."""
    x = want = torch.randn(2, 6, 64)
    for _ in range(norms):
        want = torch.nn.functional.layer_norm(want, (64,))
    torch.testing.assert_close(block(attention(), 64, drop_rate=1).train()(x, (2, 3)), want)


@pytest.mark.parametrize('extra', [0, 1])
@pytest.mark.parametrize('batch', [1, 2])
def test_maps_are_channels_last(batch, extra):
    tokens = torch.randn(batch, extra + 6 * 5, 8)[:, extra:]
    x = to_map(tokens, (6, 5))
    assert x.data_ptr() == tokens.data_ptr() and torch.equal(x[0, :, 1, 2], tokens[0, 7])
    assert torch.equal(to_tokens(x), tokens)
    strides = x.stride()
    assert strides[1] == 1 < strides[3] < strides[2] < strides[0]  # what PyTorch reads the format from
