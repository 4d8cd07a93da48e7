"""The feed-forward half of a block in chunks of tokens, and maps that convolutions need not copy."""
import pytest
import torch

from mmsoft.layers import XCiTBlock, to_map, to_tokens
from mmsoft.layers.attention import MultiheadAttention
from mmsoft.layers.blocks import PostNormBlock, PreNormBlock, by_chunks


@pytest.mark.parametrize('n', [1, 7, 8, 9, 40])
@torch.no_grad()
def test_chunks_cover_all_tokens_once(n):
    x, lengths = torch.randn(2, n, 4), []

    def double(run):
        lengths.append(run.size(1))
        return 2 * run

    assert torch.equal(by_chunks(double, x, False, elements=2 * 4 * 4 * 8), 2 * x)
    assert sum(lengths) == n and max(lengths) <= 8


@pytest.mark.parametrize('make', [
    lambda: PostNormBlock(MultiheadAttention(64, 2), 64),
    lambda: PreNormBlock(MultiheadAttention(64, 2), 64),
    lambda: XCiTBlock(64, 2),
], ids=['post-norm', 'pre-norm', 'XCiT'])  # yapf: disable
def test_large_maps_are_the_same_with_and_without_gradients(make):
    """With gradients, tokens are not taken in chunks."""
    torch.manual_seed(0)
    block, x = make().eval(), torch.randn(1, 72 * 72, 64)
    with torch.no_grad():
        chunked = block(x, (72, 72))
    torch.testing.assert_close(chunked, block(x, (72, 72)), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_an_image_is_dropped_as_a_whole():
    torch.manual_seed(0)
    block = PreNormBlock(MultiheadAttention(64, 2), 64, drop_path_rate=0.5).train()
    block.attn.forward = lambda x, hw: torch.zeros_like(x)
    x = torch.randn(8, 2048, 64)
    changed = (block(x, (32, 64)) != x).any(-1).float().mean(1)
    assert set(changed.tolist()) == {0., 1.}


@pytest.mark.parametrize('extra', [0, 1])
@pytest.mark.parametrize('batch', [1, 2])
def test_maps_are_channels_last(batch, extra):
    tokens = torch.randn(batch, extra + 6 * 5, 8)[:, extra:]
    x = to_map(tokens, (6, 5))
    assert x.data_ptr() == tokens.data_ptr() and torch.equal(x[0, :, 1, 2], tokens[0, 7])
    assert torch.equal(to_tokens(x), tokens)
    strides = x.stride()
    assert strides[1] == 1 < strides[3] < strides[2] < strides[0]  # what PyTorch reads the format from
