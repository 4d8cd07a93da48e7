"""Every config is as large as published, and its parts fit; of each network the smallest trains a step and predicts.

Sizes are checked without memory, on ``meta``. The step is taken at a quarter of the width, and each parameter takes part.
"""

import copy
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from mmengine.utils import digit_version

from benchmarks.zoo import published_models
from mmsoft.utils.config import dicts, without_pretrained

CONFIGS = Path(__file__).parent.parent / 'configs'
ZOO = (CONFIGS.parent / 'docs/zoo.md').read_text()
SIDE = 64
IMAGE = 224  # without memory, this costs no more, and position embeddings fit

PUBLISHED = published_models(CONFIGS.parent / 'model-index.yml')
CONFIG_NAMES = sorted(path.stem for path in CONFIGS.glob('*.py') if not path.stem.endswith('_1epoch'))
# Printed as 12, which is what 24 blocks have; as 22, where Table 1 of the same paper has 26. See docs/papers.md.
MISPRINTED = ('sima_xcit_tiny_20_p16_in1k', 'xcit_small_12_p16_efficient_in1k', 'xcit_small_12_p16_cosformer_in1k')


@cache
def _parsed(name):
    return Config.fromfile(CONFIGS / f'{name}.py')


def parsed(name):
    return copy.deepcopy(_parsed(name))


def detection_batch(model):
    from mmdet.testing import demo_mm_inputs

    panoptic = hasattr(model, 'panoptic_head')
    masks = panoptic or hasattr(model, 'roi_head') or model.with_mask
    batch = demo_mm_inputs(2, [(3, SIDE, SIDE)] * 2, [2, 3], num_classes=6, with_mask=masks, with_semantic=panoptic)
    for sample in batch['data_samples']:
        if panoptic:
            sample.gt_sem_seg.sem_seg = 78 + sample.gt_sem_seg.sem_seg % 6  # stuff is from 80 on
    return batch


def segmentation_batch(model):
    from mmseg.structures import SegDataSample

    samples = [SegDataSample(metainfo=dict(img_shape=(SIDE, SIDE), ori_shape=(SIDE, SIDE))) for _ in range(2)]
    for sample in samples:
        sample.gt_sem_seg = PixelData(data=torch.randint(0, 8, (1, SIDE, SIDE)))
    return dict(inputs=list(torch.randint(0, 256, (2, 3, SIDE, SIDE), dtype=torch.uint8)), data_samples=samples)


def classification_batch(model):
    from mmpretrain.structures import DataSample

    samples = [DataSample().set_gt_label(label) for label in (3, 7)]
    return dict(inputs=torch.randint(0, 256, (2, 3, SIDE, SIDE), dtype=torch.uint8), data_samples=samples)


def check_detections(model, sample):
    found = sample.pred_instances
    if getattr(model, 'panoptic_head', None):
        assert len(found) <= 4  # the best four may be stuff
        if model.test_cfg.panoptic_on:
            assert sample.pred_panoptic_seg.sem_seg.shape == (1, SIDE, SIDE)
    else:
        assert len(found) == 4
    assert found.bboxes.shape == (len(found), 4) and torch.isfinite(found.bboxes).all()
    assert ((found.scores >= 0) & (found.scores <= 1)).all()
    if getattr(model, 'with_mask', False):
        assert found.masks.shape == (len(found), SIDE, SIDE)


def check_segmentation(model, sample):
    assert sample.pred_sem_seg.data.shape == (1, SIDE, SIDE)
    assert torch.isfinite(sample.seg_logits.data).all()


def check_classification(model, sample):
    assert sample.pred_score.shape == (1000,) and sample.pred_score.sum().item() == pytest.approx(1, abs=1e-4)


HOSTS = dict(
    mmdet=(detection_batch, check_detections),
    mmseg=(segmentation_batch, check_segmentation),
    mmpretrain=(classification_batch, check_classification),
)


def small(cfg):
    """The config's model, for small images; a detector returns its best few boxes, however unsure."""
    if cfg.default_scope == 'mmpretrain':
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    if 'size' in cfg.model.data_preprocessor:
        cfg.model.data_preprocessor.size = (SIDE, SIDE)
    for part in dicts(cfg.model.get('test_cfg')):
        for key in {'max_per_img', 'max_per_image'} & set(part):
            part[key] = 4
        if 'score_thr' in part:
            part['score_thr'] = 0.0
    for part in dicts(cfg.model):
        if part.get('type') == 'BatchFixedSizePad':
            part.update(size=(SIDE, SIDE))
        if 'num_points' in part and 'oversample_ratio' in part:  # of a mask, to compare
            part.update(num_points=64)
    return cfg.model


@pytest.mark.parametrize('method, schedule', [('retinanet', '1x'), ('mask_rcnn', '1x'), ('upernet', '160k')])
def test_one_epoch_is_another_schedule_of_the_same_model(method, schedule):
    """And without normalisation, another switch and another file."""
    base, norm, plain = (
        Config.fromfile(CONFIGS / f'{method}_soft_small_{suffix}.py').model
        for suffix in (schedule, '1epoch', 'plain_1epoch')
    )
    assert norm == base and norm.backbone.attention_norm
    plain.backbone.update(attention_norm=True, init_cfg=norm.backbone.init_cfg)
    assert plain == norm


def in_the_zoo(name):
    """A config's parameters as docs/zoo.md has them, in millions."""
    return re.search(rf'\[{re.escape(name)}\]\([^)]*\) *\| *([\d.]+)', ZOO).group(1)


def extra_weights(name):
    """What the fork's mmdet has more than mmdet 3.3: DINO's ref_point_head takes 1,024 channels there, not 512."""
    from mmdet import __version__

    return 256 * 512 if name.startswith('dino_') and digit_version(__version__) > digit_version('3.3.0') else 0


@pytest.mark.parametrize('name', CONFIG_NAMES)
def test_config_is_as_large_as_published_and_fits_together(name):
    cfg = without_pretrained(parsed(name))
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = revert_sync_batchnorm(MODELS.build(small(cfg))).eval()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        for stage in getattr(model.backbone, 'stages', ()):
            del stage.blocks[1:]  # which have the first one's widths
        for block in list(getattr(model.backbone, 'blocks', ()))[1:]:
            block.forward = lambda x, *_: x
        maps = model.extract_feat(torch.empty(2, 3, IMAGE, IMAGE))
        head = model.rpn_head if getattr(model, 'with_rpn', False) else getattr(model, 'bbox_head', None)
        if cfg.default_scope == 'mmseg':
            for part in [model.decode_head, *([model.auxiliary_head] if model.with_auxiliary_head else [])]:
                assert part(maps).shape[:2] == (2, part.num_classes)
        elif cfg.default_scope == 'mmpretrain':
            assert model.head(maps).shape == (2, 1000)
        elif hasattr(head, 'prior_generator'):
            strides = [stride[0] for stride in head.prior_generator.strides]
            assert [x.size(-1) for x in maps] == [-(-IMAGE // stride) for stride in strides]
            assert all(len(level) == len(maps) for level in head(maps))

    assert f'{(parameters - extra_weights(name)) / 1e6:.2f}' == in_the_zoo(name)
    printed = PUBLISHED.get(name, {}).get('Parameters')
    if printed and name not in MISPRINTED:
        digit = next(digit for digit in (1e6, 1e5, 1e4) if printed % digit == 0)
        assert printed in (round(parameters / digit) * digit, parameters // digit * digit), 'neither rounded nor cut'


SIZES = 'tiny|small|medium|large|huge|20_blocks|12|13|20|24|p8|p16|lr6e-4|36|49|64|81'
ATTENTIONS = (
    'plain|avg_pool|biased|bottleneck|random|softmax|linformer|performer|nystromformer|gaussian|efficient|cosformer|2d|'
    'no_norm|l2|single_head|sky'
)
NETWORKS = sorted({re.sub(rf'_({SIZES}|{ATTENTIONS})(?=_|$)', '', name): name for name in CONFIG_NAMES}.values())
"""One of the configs that differ in sizes and attentions, which are tested in every backbone (attention/test_attention.py)."""


def narrow(model):
    """A model a quarter as wide; SOFT also has one block a stage, and classifiers two blocks."""

    def quarter(value):
        if isinstance(value, (list, tuple)):
            return [quarter(one) for one in value]
        return value // 4 if value and value >= 32 else value

    def change(model):
        for part in dicts(model):
            if 'num_queries' in part:  # no more than a small image has places
                part['num_queries'] = 8
            for key, value in part.items():
                if key.endswith(('channels', 'channel', 'embed_dims', 'num_feats', 'num_groups')) and not isinstance(
                    value, str
                ):
                    part[key] = quarter(value)
        return model

    model = model.to_dict()
    backbone = model['backbone']
    made = MODELS.get(backbone['type'])
    if isinstance(backbone.get('arch'), str):
        backbone['arch'] = copy.deepcopy(made.arch_settings[backbone['arch']])
    if 'depths' in backbone.get('arch', ()):
        backbone['arch']['depths'] = [1] * len(backbone['arch']['depths'])
    elif backbone.get('out_type') == 'cls_token' and 'arch' in backbone:
        backbone['arch']['depth'] = 2
    if model['type'] == 'DINO':  # mmdet's is 256 wide
        necks = model['neck'] if isinstance(model['neck'], list) else [model['neck']]
        for neck in necks:
            neck['in_channels'] = quarter(neck['in_channels'])
        coders = {key: dict(model[key], num_layers=2) for key in ('encoder', 'decoder')}
        return ConfigDict(model, backbone=change(backbone), neck=necks, num_queries=8, **coders)
    return ConfigDict(change(model))


@pytest.mark.parametrize('name', NETWORKS)
def test_network_trains_and_predicts(name):
    cfg = without_pretrained(parsed(name))
    init_default_scope(cfg.default_scope)
    model = revert_sync_batchnorm(MODELS.build(narrow(small(cfg))))
    model.init_weights()
    make_batch, check = HOSTS[cfg.default_scope]

    model.train()
    batch = model.data_preprocessor(make_batch(model), training=True)
    loss, logged = model.parse_losses(model(**batch, mode='loss'))
    assert all(np.isfinite(value.item()) for value in logged.values())
    loss.backward()
    trained = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.requires_grad}
    unused = [key for key, gradient in trained.items() if gradient is None]
    assert unused == (['backbone.cls_token'] if cfg.get('find_unused_parameters') else [])  # mmpretrain's XCiT
    assert all(torch.isfinite(gradient).all() for key, gradient in trained.items() if key not in unused)

    model.eval()
    samples = model.test_step(make_batch(model))
    assert len(samples) == 2
    for sample in samples:
        check(model, sample)
