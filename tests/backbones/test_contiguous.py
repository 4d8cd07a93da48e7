"""Maps are contiguous in NCHW, and operators that read them by pointer read what is there (open-mmlab/mmcv#2203)."""

from pathlib import Path

import pytest
import torch
import torchvision
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from torch.testing import assert_close

from mmsoft.backbones import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.necks import RescalePyramid
from mmsoft.utils.config import without_pretrained

ops = pytest.importorskip('mmcv.ops')
CONFIGS = Path(__file__).parents[2] / 'configs'
TWO_STAGE = (
    'mask_rcnn_soft_tiny_1x',
    'cascade_mask_rcnn_soft_small_3x',
    'mask_rcnn_sima_xcit_small_12_p16_3x',
    'sparse_rcnn_soft_small_3x',
)
XCIT = dict(embed_dims=32, num_heads=2, depth=2, patch_size=8)
BACKBONES = {
    'soft': lambda **kwargs: SOFT(dict(embed_dims=[32] * 4, num_heads=[1] * 4, depths=[1] * 4), **kwargs),
    'soft_plain': lambda **kwargs: SOFT(
        dict(embed_dims=[32] * 4, num_heads=[1] * 4, depths=[1] * 4), attention_norm=False, **kwargs
    ),
    'xcit': lambda **kwargs: SimAXCiT(XCIT, (0, 1), **kwargs),
    'xcit_masked': lambda **kwargs: SimAXCiT(XCIT, (0, 1), mask_padding=True, **kwargs),
    'deit': lambda **kwargs: SimADeiT(dict(embed_dims=32, num_heads=2, depth=2), (0, 1), **kwargs),
    'cvt': lambda **kwargs: SimACvT(dict(embed_dims=[16, 32, 48], num_heads=[1, 2, 3], depths=[1] * 3), **kwargs),
}
MODES = {'gradients': torch.enable_grad, 'no gradients': torch.no_grad, 'inference': torch.inference_mode}


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('hw', [(64, 64), (64, 96), (352, 512)], ids='{0[0]}x{0[1]}'.format)  # FFN whole, and in runs
@pytest.mark.parametrize('batch', [0, 2])
@pytest.mark.parametrize('name', BACKBONES)
def test_maps_of_backbones(name, batch, hw, mode):
    model = BACKBONES[name](with_cls_token=True).train(mode == 'gradients' and batch > 0)
    for images in (torch.rand(batch, 3, *hw), torch.rand(batch, 3, *hw).to(memory_format=torch.channels_last)):
        with MODES[mode]():
            *maps, (last, _) = model(images)
        assert all(x.is_contiguous() for x in (*maps, last))


@pytest.mark.parametrize('name', BACKBONES)
@torch.no_grad()
def test_maps_of_a_channels_last_model(name):
    model = BACKBONES[name]().to(memory_format=torch.channels_last).eval()
    assert all(x.is_contiguous() for x in model(torch.rand(2, 3, 64, 96).to(memory_format=torch.channels_last)))


@pytest.mark.parametrize('memory_format', [torch.contiguous_format, torch.channels_last], ids=str)
@torch.no_grad()
def test_maps_of_the_pyramid(memory_format):
    pyramid = RescalePyramid(8, (4, 2, 1, 0.5)).to(memory_format=memory_format)
    for x in (torch.rand(2, 8, 5, 6), torch.rand(2, 8, 5, 6).to(memory_format=torch.channels_last)):
        assert all(out.is_contiguous() for out in pyramid([x]))


def roi_align(maps, rois, extractor):
    """RoI features by torchvision, each box from the level of its size (FPN, Eq. 1)."""
    size = ((rois[:, 3] - rois[:, 1]) * (rois[:, 4] - rois[:, 2])).sqrt()
    levels = (size / extractor.finest_scale + 1e-6).log2().floor().clamp(0, len(extractor.roi_layers) - 1)
    features = [
        torchvision.ops.roi_align(
            maps[int(level)], roi[None], layer.output_size, layer.spatial_scale, layer.sampling_ratio, layer.aligned
        )
        for roi, level in zip(rois, levels)
        for layer in [extractor.roi_layers[int(level)]]
    ]
    return torch.cat(features)


@pytest.mark.parametrize('name', TWO_STAGE)
def test_roi_features(name):
    cfg = without_pretrained(Config.fromfile(CONFIGS / f'{name}.py'))
    init_default_scope('mmdet')
    torch.manual_seed(0)
    model = revert_sync_batchnorm(MODELS.build(cfg.model))
    rois = torch.tensor([[0, 3, 5, 60, 50], [1, 0, 0, 96, 64], [1, 30, 20, 38, 25], [0, 10, 4, 14, 60]]).float()
    heads = model.roi_head
    extractors = [heads.bbox_roi_extractor, getattr(heads, 'mask_roi_extractor', None)]
    extractors = [
        each
        for some in extractors
        if some is not None
        for each in (some if isinstance(some, torch.nn.ModuleList) else [some])
    ]
    for training in (True, False):
        with torch.set_grad_enabled(training):
            maps = model.train(training).extract_feat(torch.randn(2, 3, 64, 96))
            for extractor in extractors:
                got = extractor(maps[: extractor.num_inputs], rois)
                assert_close(got, roi_align(maps, rois, extractor), rtol=1e-4, atol=1e-5)


def _deformable(x, device, modulated):
    offset, mask, weight = torch.randn(2, 18, 16, 24), torch.rand(2, 9, 16, 24), torch.randn(4, 32, 3, 3)
    offset, mask, weight = (t.to(device) for t in (offset, mask, weight))
    if modulated:
        got = ops.modulated_deform_conv2d(x, offset, mask, weight, None, 1, 1, 1, 1, 1)
    else:
        got = ops.deform_conv2d(x, offset, weight, 1, 1, 1, 1, 1)
    return got, torchvision.ops.deform_conv2d(x, offset, weight, padding=1, mask=mask if modulated else None)


def _rotated_roi_align(x, device):
    rois = torch.tensor([[0, 30, 20, 24, 16, 0], [1, 50, 30, 60, 40, 0]], device=device).float()
    boxes = torch.cat([rois[:, :1], rois[:, 1:3] - rois[:, 3:5] / 2, rois[:, 1:3] + rois[:, 3:5] / 2], dim=1)
    return (
        ops.roi_align_rotated(x, rois, (7, 7), 0.25, 2, True, False),
        torchvision.ops.roi_align(x, boxes, 7, 0.25, 2, True),
    )


def _roi_pool(x, device):
    rois = torch.tensor([[0, 4, 4, 60, 50], [1, 0, 0, 92, 60]], device=device).float()
    return ops.roi_pool(x, rois, 7, 0.25), torchvision.ops.roi_pool(x, rois, 7, 0.25)


def _carafe(x, device):
    masks = torch.rand(2, 25, 32, 48, device=device)
    windows = torch.nn.functional.unfold(x, 5, padding=2).view(2, 32, 25, 16, 24)
    windows = windows.repeat_interleave(2, 3).repeat_interleave(2, 4)
    return ops.carafe(x, masks, 5, 1, 2), (windows * masks[:, None]).sum(2)


def _masked_convolution(x, device):
    x, weight, bias = x[:1], torch.randn(4, 32, 3, 3, device=device), torch.zeros(4, device=device)
    mask = (torch.rand(1, 16, 24, device=device) > 0.5).float()
    return ops.masked_conv2d(x, mask, weight, bias, 1), torch.conv2d(x, weight, padding=1) * mask


def _deformable_attention(x, device):
    attn = ops.MultiScaleDeformableAttention(32, 2, 1, 4, dropout=0.0, batch_first=True).to(device)
    tokens, shapes = x.flatten(2).transpose(1, 2), torch.tensor([[16, 24]], device=device)
    points = torch.rand(2, 16 * 24, 1, 2, device=device)
    got = attn(
        tokens,
        value=tokens,
        reference_points=points,
        spatial_shapes=shapes,
        level_start_index=torch.zeros(1, dtype=torch.long, device=device),
    )
    twin = attn.cpu()
    want = twin(
        *(t.contiguous().cpu() for t in (tokens,)),
        value=tokens.contiguous().cpu(),
        reference_points=points.cpu(),
        spatial_shapes=shapes.cpu(),
        level_start_index=torch.zeros(1).long(),
    )
    return got, want.to(device)


ON_ANY_DEVICE = {
    'deformable convolution': lambda x, device: _deformable(x, device, False),
    'modulated deformable convolution': lambda x, device: _deformable(x, device, True),
    'rotated RoIAlign': _rotated_roi_align,
    'deformable attention': _deformable_attention,
}
ON_GPUS = {'RoIPool': _roi_pool, 'CARAFE': _carafe, 'masked convolution': _masked_convolution}


def check_operator(operator, name, device):
    torch.manual_seed(0)
    model = BACKBONES[name]().eval().to(device)
    with torch.no_grad():
        x = next(
            out
            for out in model(
                torch.randn(2, 3, 128 if 'xcit' in name else 64, 192 if 'xcit' in name else 96, device=device)
            )
            if out.shape[1:] == (32, 16, 24)
        )
        got, want = operator(x, device)
    assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('name', ['soft', 'xcit'])
@pytest.mark.parametrize('operator', ON_ANY_DEVICE)
def test_operators_that_read_by_pointer(operator, name):
    check_operator(ON_ANY_DEVICE[operator], name, 'cpu')


@pytest.mark.cuda
@pytest.mark.parametrize('name', ['soft', 'xcit'])
@pytest.mark.parametrize('operator', [*ON_ANY_DEVICE, *ON_GPUS])
def test_operators_that_read_by_pointer_on_a_gpu(operator, name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, 'allow_tf32', False)
    check_operator({**ON_ANY_DEVICE, **ON_GPUS}[operator], name, 'cuda')


def test_nms_of_boxes_that_are_views():
    torch.manual_seed(0)
    corners, scores = torch.rand(4, 200) * 50, torch.rand(200, 2)[:, 0]
    corners[2:] += corners[:2]
    boxes = corners.t()
    assert not boxes.is_contiguous() and not scores.is_contiguous()
    _, kept = ops.nms(boxes, scores, 0.5)
    assert torch.equal(kept, torchvision.ops.nms(boxes.contiguous(), scores.contiguous(), 0.5))
