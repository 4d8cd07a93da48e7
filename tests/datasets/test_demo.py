"""Configs of the hosts, on the shapes."""
import copy

import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import Runner

from mmsoft.datasets.demo import on_shapes, retarget, shrink, with_counts
from mmsoft.datasets.shapes import CLASSES, STUFF, ensure_shapes
from mmsoft.utils.config import datasets, dicts, load_config, type_name
from mmsoft.utils.errors import UsageError

HOST_CONFIGS = [
    'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py',
    'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
    'mmdet::cascade_rcnn/cascade-mask-rcnn_r50_fpn_ms-3x_coco.py',
    'mmdet::atss/atss_r50_fpn_1x_coco.py',
    'mmdet::gfl/gfl_r50_fpn_ms-2x_coco.py',
    'mmdet::sparse_rcnn/sparse-rcnn_r50_fpn_300-proposals_crop-ms-480-800-3x_coco.py',
    'mmdet::yolox/yolox_s_8xb8-300e_coco.py',
    'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py',
    'mmdet::pascal_voc/faster-rcnn_r50_fpn_1x_voc0712.py',
    'mmdet::lvis/mask-rcnn_r50_fpn_sample1e-3_ms-1x_lvis-v1.py',
    'mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py',
    'mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py',
    'mmseg::mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py',
    'mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py',
    'mmpretrain::resnet/resnet50_8xb16_cifar10.py',
]


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    return str(ensure_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=12, val=4, portraits=32))


@pytest.fixture
def load(tmp_path):

    def load(name, text=''):
        path = tmp_path / 'config.py'
        path.write_text(f"_base_ = '{name}'\n{text}")
        return load_config(str(path))

    return load


@pytest.fixture(params=HOST_CONFIGS, ids=lambda name: name.split('/')[-1][:-3])
def pair(request, load, root):
    """A host's config, and the same one on the shapes."""
    original = load(request.param)
    before = copy.deepcopy(original._cfg_dict)
    cfg = retarget(original, root=root)
    assert original._cfg_dict == before, 'the original was changed'
    return original, cfg


def test_any_host_config_runs_on_the_shapes(pair, root):
    original, cfg = pair
    init_default_scope(cfg.default_scope)
    count = len(CLASSES) + len(STUFF) * (cfg.default_scope == 'mmseg')

    for name, key in [('train_dataloader', 'indices'), ('val_dataloader', 'test_mode')]:
        if cfg.default_scope == 'mmpretrain':
            cfg[name].setdefault('collate_fn', dict(type='default_collate'))
        loader = Runner.build_dataloader(cfg[name], seed=0)
        assert len(loader.dataset.metainfo['classes']) == count
        batch = next(iter(loader))
        images = batch['inputs']
        assert len(images) == len(batch['data_samples']) == min(cfg[name].batch_size, len(loader.dataset))
        assert all(max(image.shape[1:]) <= 320 for image in images)

    counts = [part['num_classes'] for part in dicts(cfg.model) if 'num_classes' in part]
    assert set(counts) <= {count} and len(counts) == len([1 for part in dicts(original.model) if 'num_classes' in part])
    assert not [part for part in dicts(cfg.model) if type_name(part) == 'Pretrained' or part.get('pretrained')]
    assert not any(part.get('norm_eval') or part.get('frozen_stages', -1) >= 0 for part in dicts(cfg.model))
    assert all(part['ann_file'].startswith(root) for part in dicts(cfg.val_evaluator) if 'ann_file' in part)
    assert cfg.load_from is None
    assert type(cfg.model) is type(original.model) and cfg.model.type == original.model.type
    Config.fromstring(cfg.pretty_text, '.py')  # which the runner saves beside the checkpoints


def test_schedules_keep_their_phases(pair):
    original, cfg = pair
    key = 'max_iters' if 'max_iters' in cfg.train_cfg else 'max_epochs'
    assert cfg.train_cfg[key] <= 128
    assert 0 < cfg.train_cfg.val_interval <= cfg.train_cfg[key]
    assert cfg.default_hooks.checkpoint.interval <= cfg.train_cfg[key]
    schedulers, before = cfg.param_scheduler, original.param_scheduler
    before = before if isinstance(before, list) else [before]
    assert schedulers and all(one['type'] == other['type'] for one, other in zip(schedulers, before))
    limit = {True: cfg.train_cfg.get('max_epochs'), False: cfg.train_cfg.get('max_iters', 64)}
    for scheduler in schedulers:
        by_epoch = scheduler.get('by_epoch', True)
        assert scheduler.get('begin', 0) < scheduler.get('end', limit[by_epoch]) <= limit[by_epoch]
        assert all(one <= limit[by_epoch] for one in scheduler.get('milestones', []))


@pytest.mark.parametrize('name, length, expected', [
    (HOST_CONFIGS[0], dict(max_epochs=6), dict(end=6, milestones=[4, 6])),
    ('mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py', dict(max_iters=1000), dict(end=1000)),
])
def test_length_can_be_chosen(load, root, name, length, expected):
    cfg = retarget(load(name), root=root, **length)
    assert cfg.train_cfg[list(length)[0]] == list(length.values())[0]
    assert {key: cfg.param_scheduler[-1][key] for key in expected} == expected


def test_averages_of_weights_follow_a_short_training(load, root):
    cfg = retarget(load('mmdet::yolox/yolox_s_8xb8-300e_coco.py'), max_epochs=2, root=root)
    hook, = (hook for hook in cfg.custom_hooks if hook.type == 'EMAHook')
    iters = 2 * 128 / cfg.train_dataloader.batch_size
    assert (1 - hook.momentum)**iters < 1e-3, 'the random start is still in the average'


def test_length_of_the_wrong_kind(load):
    with pytest.raises(UsageError, match='train_cfg.max_epochs instead of train_cfg.max_iters'):
        retarget(load(HOST_CONFIGS[0]), max_iters=5)


def test_what_the_shapes_do_not_have(load):
    with pytest.raises(UsageError, match='LoadPanopticAnnotations'):
        retarget(load('mmdet::panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py'))


def test_a_config_for_the_shapes_stays_as_it_is(load):
    cfg = load(HOST_CONFIGS[0])
    assert not on_shapes(cfg)
    for _, dataset in datasets(cfg):
        dataset.data_root = 'data/shapes/'
    assert on_shapes(cfg) and retarget(cfg) is cfg


def test_region_proposals_keep_their_class():
    model = dict(rpn_head=dict(num_classes=1), roi_head=dict(bbox_head=[dict(num_classes=80), dict(num_classes=80)]))
    assert with_counts(model, 8) == dict(
        rpn_head=dict(num_classes=1), roi_head=dict(bbox_head=[dict(num_classes=8), dict(num_classes=8)]))


@pytest.mark.parametrize('weight, expected', [
    ([1.0] * 80 + [0.1], [1.0] * 8 + [0.1]),
    ([1.0] * 80, [1.0] * 8),
    ([0.8, 1.2, 0.9], None),
])
def test_class_weights(weight, expected):
    assert with_counts(dict(num_classes=80, loss=dict(class_weight=weight)), 8)['loss']['class_weight'] == expected


@pytest.mark.parametrize('before, after', [
    (dict(scale=(1333, 800)), dict(scale=(320, 192))),
    (dict(scales=[(480, 1333), (800, 1333)]), dict(scales=[(128, 320), (192, 320)])),
    (dict(type='RandomAffine', border=(-400, -400)), dict(type='RandomAffine', border=(-96, -96))),
    (dict(crop_size=(0.5, 0.5), crop_type='relative'), dict(crop_size=(0.5, 0.5), crop_type='relative')),
    (dict(scale=224, ratio_range=(0.5, 2.0)), dict(scale=64, ratio_range=(0.5, 2.0))),
    (dict(crop_size=32), dict(crop_size=32)),
    (dict(type='Pad', size_divisor=32), dict(type='Pad', size_divisor=32)),
])
def test_sizes(before, after):
    assert shrink([dict(transforms=[[before]])], 0.24) == [dict(transforms=[[after]])]
