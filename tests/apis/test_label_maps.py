"""Label maps of large pictures are mmseg's, in a fraction of its memory."""

import pytest
import torch
import torch.nn.functional as F
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, init_default_scope
from mmseg.structures import SegDataSample
from torch.utils._python_dispatch import TorchDispatchMode

from mmsoft.apis.tasks import predict_labels
from mmsoft.layers.maps import best_class

CLASSES = 40
NANO = dict(embed_dims=[16], num_heads=[1], depths=[1])


class Largest(TorchDispatchMode):
    """The most bytes that one tensor of those that are made has."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if torch.is_tensor(out):
            self.bytes = max(self.bytes, out.untyped_storage().nbytes())
        return out


def segmenter(preprocessor=None, **test_cfg):
    init_default_scope('mmseg')
    torch.manual_seed(0)
    return MODELS.build(
        dict(
            type='EncoderDecoder',
            data_preprocessor=dict(
                type='SegDataPreProcessor',
                mean=[120.0] * 3,
                std=[60.0] * 3,
                pad_val=0,
                seg_pad_val=255,
                **(preprocessor or {}),
            ),
            backbone=dict(
                type='mmsoft.SOFT', arch=NANO, out_indices=(0,), attention=dict(type='SOFTAttention', bottleneck_size=3)
            ),
            decode_head=dict(
                type='FCNHead',
                in_channels=16,
                in_index=0,
                channels=16,
                num_convs=1,
                concat_input=False,
                num_classes=CLASSES,
                align_corners=False,
                norm_cfg=dict(type='BN'),
            ),
            test_cfg=ConfigDict(test_cfg),
        )
    ).eval()


def pictures(count, size, ori_shape):
    samples = [SegDataSample(metainfo=dict(ori_shape=ori_shape, img_shape=size, pad_shape=size)) for _ in range(count)]
    shades = F.interpolate(torch.rand(count, 3, size[0] // 8, size[1] // 8), size, mode='bicubic')
    return dict(inputs=list((255 * shades).clamp(0, 255).byte()), data_samples=samples)


def labels_of(samples):
    return torch.stack([sample.pred_sem_seg.data for sample in samples])


@pytest.mark.parametrize('align_corners', [False, True])
def test_the_best_class_is_argmax_bit_for_bit(align_corners):
    scores = torch.randn(CLASSES, 37, 50).round(decimals=1)  # many ties
    for size in ((151, 203), (37, 50), (20, 31)):
        whole = F.interpolate(scores[None], size, mode='bilinear', align_corners=align_corners)[0].argmax(0)
        assert (best_class(scores, size, align_corners) == whole).all()


@pytest.mark.parametrize(
    'test_cfg, size, ori_shape',
    [
        (dict(mode='whole'), (64, 96), (240, 360)),
        (dict(mode='slide', crop_size=(32, 48), stride=(20, 30)), (64, 96), (240, 360)),
    ],
    ids=['whole', 'windows'],
)
@torch.no_grad()
def test_labels_are_those_of_mmseg(test_cfg, size, ori_shape):
    model, data = segmenter(**test_cfg), pictures(2, size, ori_shape)
    expected = labels_of(model.test_step(data))
    found = labels_of(predict_labels(model, data))
    assert len(expected.unique()) > 5
    assert found.dtype == expected.dtype and (found == expected).all()


@torch.no_grad()
def test_padding_is_taken_off():
    model = segmenter(dict(test_cfg=dict(size_divisor=64)), mode='whole')
    data = pictures(1, (60, 72), (120, 144))
    expected = labels_of(model.test_step(data))
    assert (labels_of(predict_labels(model, data)) == expected).all()


@pytest.mark.parametrize('key', ['padding_size', 'img_padding_size'])
@torch.no_grad()
def test_padding_of_a_pipeline_may_be_on_any_side(key):
    model, data = segmenter(mode='whole'), pictures(1, (64, 96), (120, 144))
    data['data_samples'][0].set_metainfo({key: (4, 24, 20, 8)})
    expected = labels_of(model.test_step(data))
    assert (labels_of(predict_labels(model, data)) == expected).all()


@torch.no_grad()
def test_scores_are_never_whole():
    model, data = segmenter(mode='whole'), pictures(1, (32, 32), (256, 256))
    whole = 4 * CLASSES * 256 * 256
    with Largest() as host:
        model.test_step(data)
    with Largest() as ours:
        predict_labels(model, data)
    assert host.bytes >= whole and ours.bytes < whole / 8
