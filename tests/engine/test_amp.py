"""Features in bfloat16, on devices that have it."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, OPTIM_WRAPPERS, init_default_scope
from torch import nn

from mmsoft.apis.launch import _enable_amp
from mmsoft.utils import UsageError


class Detector(nn.Module):
    """Keeps the dtype in which each of its parts computed."""

    def __init__(self):
        super().__init__()
        self.backbone, self.neck, self.bbox_head = (nn.Linear(4, 4) for _ in range(3))
        self.computed = {}
        for name, part in self.named_children():
            part.register_forward_hook(lambda _, __, out, name=name: self.computed.update({name: out.dtype}))

    def forward(self, x):
        maps = self.neck(self.backbone(x))
        assert maps.dtype == torch.float32
        return self.bbox_head(maps)


@pytest.fixture
def model():
    return Detector()


@pytest.fixture
def wrapper(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return OPTIM_WRAPPERS.build(dict(type='mmsoft.BFloat16OptimWrapper', optimizer=optimizer))


def test_features_alone_are_in_bfloat16(wrapper, model):
    with wrapper.optim_context(model):
        loss = model(torch.ones(2, 4)).sum()
    assert model.computed == dict(backbone=torch.bfloat16, neck=torch.bfloat16, bbox_head=torch.float32)
    before = model.backbone.weight.clone()
    wrapper.update_params(loss)
    assert not torch.equal(model.backbone.weight, before)
    model(torch.ones(2, 4))
    assert set(model.computed.values()) == {torch.float32}, 'it does not end'


def test_an_error_ends_it_too(wrapper, model):
    with pytest.raises(RuntimeError), wrapper.optim_context(model):
        model(torch.ones(2, 3))
    assert not torch.is_autocast_cpu_enabled()


def test_student_and_teacher():
    """Semi-supervised detectors have backbones and necks inside of detectors."""
    cfg = Config.fromfile(Path(__file__).parents[2] / 'configs/retinanet_soft_nano_shapes.py')
    init_default_scope('mmdet')
    semi = MODELS.build(
        dict(
            type='SemiBaseDetector',
            detector=cfg.model,
            semi_train_cfg=dict(freeze_teacher=True),
            semi_test_cfg=dict(predict_on='teacher'),
        )
    )
    computed = {}
    for name, module in semi.named_modules():
        if name.endswith(('stages.0.embed.0.conv', 'retina_cls')):
            module.register_forward_hook(lambda _, __, out, name=name: computed.update({name: out.dtype}))
    wrapper = OPTIM_WRAPPERS.build(
        dict(type='mmsoft.BFloat16OptimWrapper', optimizer=torch.optim.SGD(semi.parameters(), lr=0.1))
    )
    with wrapper.optim_context(semi):
        for detector in (semi.student, semi.teacher):
            detector(torch.rand(2, 3, 64, 64), mode='tensor')
    assert len(computed) == 4
    assert all(dtype == (torch.bfloat16 if 'backbone' in name else torch.float32) for name, dtype in computed.items())


def test_nothing_to_compute_in_bfloat16(wrapper):
    with pytest.raises(UsageError, match='Linear has none; train without it'), wrapper.optim_context(nn.Linear(1, 1)):
        pass


FEATURES = dict(type='mmsoft.BFloat16OptimWrapper')
SCALED = dict(type='AmpOptimWrapper', loss_scale='dynamic')


@pytest.mark.parametrize(
    'capability, scope, given, expected',
    [
        (None, 'mmdet', {}, FEATURES),
        ((7, 0), 'mmdet', {}, SCALED),
        ((9, 0), 'mmdet', {}, FEATURES),
        ((9, 0), 'mmseg', {}, dict(SCALED, dtype='bfloat16')),
        ((9, 0), 'mmpretrain', dict(dtype='float16'), dict(SCALED, dtype='float16')),
        ((9, 0), 'mmdet', dict(type='AmpOptimWrapper', dtype='float16'), dict(SCALED, dtype='float16')),
    ],
    ids=['cpu', 'volta', 'detector', 'segmenter', 'float16', 'detector in float16'],
)
def test_the_switch_takes_bfloat16_where_the_device_has_it(monkeypatch, capability, scope, given, expected):
    """mmcv's RoIAlign and focal loss, which detectors use, have no kernels for bfloat16."""
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda: capability)
    cfg = Config(dict(default_scope=scope, optim_wrapper=given))
    _enable_amp(cfg)
    assert cfg.optim_wrapper == expected
