"""The pyramid before FPN."""

import pytest
import torch
from mmengine.registry import MODELS as MMENGINE_MODELS

from mmsoft.necks import RescalePyramid
from mmsoft.registry import MODELS


@pytest.mark.parametrize(
    'rescales, hw, expected',
    [
        ((4, 2, 1, 0.5), (14, 20), [(56, 80), (28, 40), (14, 20), (7, 10)]),
        ((4, 2, 1, 0.5), (7, 5), [(28, 20), (14, 10), (7, 5), (4, 3)]),
        ((2, 1, 0.5, 0.25), (28, 12), [(56, 24), (28, 12), (14, 6), (7, 3)]),
        ((2, 1, 0.5, 0.25), (5, 1), [(10, 2), (5, 1), (3, 1), (2, 1)]),
        ((1, 0.125), (16, 25), [(16, 25), (2, 4)]),
    ],
)
def test_sizes(rescales, hw, expected):
    neck = RescalePyramid(8, rescales)
    maps = [torch.rand(2, 8, *hw) for _ in rescales]
    assert [tuple(level.shape[-2:]) for level in neck(maps)] == expected
    assert [tuple(level.shape[-2:]) for level in neck(maps[:1])] == expected


def test_identity_and_pooling():
    neck = RescalePyramid(4, (1, 0.5))
    x = torch.rand(1, 4, 6, 6)
    same, half = neck([x, x])
    assert same is x and torch.equal(half, torch.nn.functional.max_pool2d(x, 2))
    odd = -torch.rand(1, 4, 5, 7)
    assert torch.equal(neck([odd])[1], torch.nn.functional.max_pool2d(odd, 2, ceil_mode=True))


@pytest.mark.parametrize('rescales', [(4, 2, 1, 0.5), (2, 1, 0.5, 0.25)])
def test_every_parameter_is_used_and_sizes_suit_fpn(rescales):
    pytest.importorskip('mmdet.models')
    neck = MMENGINE_MODELS.build(dict(type='mmsoft.RescalePyramid', in_channels=8, rescales=rescales))
    fpn = MMENGINE_MODELS.build(dict(type='mmdet.FPN', in_channels=[8] * 4, out_channels=8, num_outs=5))
    maps = [torch.rand(2, 8, 7, 5) for _ in range(4)]
    sum(level.sum() for level in fpn(neck(maps))).backward()
    assert all(p.grad is not None for p in neck.parameters())


def test_same_as_feature2pyramid_on_even_maps():
    reference = pytest.importorskip('mmseg.models.necks.featurepyramid').Feature2Pyramid(8, norm_cfg=dict(type='BN'))
    neck = RescalePyramid(8)
    reference.upsample_4x.load_state_dict(neck.levels[0].state_dict())
    reference.upsample_2x.load_state_dict(neck.levels[1].state_dict())
    maps = [torch.rand(2, 8, 6, 4) for _ in range(4)]
    for ours, theirs in zip(neck(maps), reference(maps)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize('norm', ['SyncBN', 'GN'])
def test_norm_is_chosen_by_config(norm):
    norm_cfg = dict(type=norm, **(dict(num_groups=2) if norm == 'GN' else {}))
    neck = MODELS.build(dict(type='mmsoft.RescalePyramid', in_channels=8, norm_cfg=norm_cfg))
    assert type(neck.levels[0][1]).__name__ == dict(SyncBN='SyncBatchNorm', GN='GroupNorm')[norm]


def test_initialisation():
    neck = RescalePyramid(8, init_cfg=dict(type='Constant', layer='ConvTranspose2d', val=3))
    neck.init_weights()
    assert all((level.weight == 3).all() for level in (neck.levels[0][0], neck.levels[0][3], neck.levels[1][0]))


def test_errors():
    with pytest.raises(ValueError, match='powers of two'):
        RescalePyramid(8, (3, 1))
    with pytest.raises(ValueError, match='4 rescales'):
        RescalePyramid(8)([torch.rand(1, 8, 4, 4)] * 3)
