"""Patches that do not overlap, against torch's unfold, and in SOFT."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from mmsoft.backbones import SOFT
from mmsoft.layers.embed import PatchEmbed

ARCH = dict(embed_dims=[16, 16, 32, 32], num_heads=[1, 1, 2, 2], depths=[1] * 4)


@pytest.mark.parametrize('hw, padding', [((8, 12), (0, 0)), ((7, 9), (1, 3))], ids=str)
@torch.no_grad()
def test_a_linear_map_of_each_patch(hw, padding):
    embed, x = PatchEmbed(3, 8, 4).double(), torch.randn(2, 3, *hw, dtype=torch.float64)
    patches = F.unfold(F.pad(x, (0, padding[1], 0, padding[0])), 4, stride=4).mT
    tokens = F.layer_norm(F.linear(patches, embed.conv.weight.flatten(1), embed.conv.bias), (8,))
    assert_close(embed(x), tokens.mT.unflatten(2, (2, 3)))


@pytest.mark.parametrize('hw', [(64, 64), (33, 47)], ids=str)
@torch.no_grad()
def test_in_the_body_of_soft(hw):
    patches, overlapped = (SOFT(ARCH, embedding=name).eval() for name in ('patches', 'overlapped'))
    images = torch.randn(2, 3, *hw)
    assert [out.shape for out in patches(images)] == [out.shape for out in overlapped(images)]
    moved = images.clone()
    moved[:, :, :4, :4] += 1  # one patch
    a, b = (patches.stages[0].embed(x) for x in (images, moved))
    assert (a != b).any(1).sum() == 2 and (a != b).any(1)[:, 0, 0].all()


def test_an_unknown_embedding():
    with pytest.raises(ValueError, match="embedding must be one of overlapped, patches; got 'conv'"):
        SOFT(ARCH, embedding='conv')
