"""Configs of this repository, on synthetic data."""

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.model import StochasticWeightAverage
from mmengine.registry import HOOKS, MODELS, PARAM_SCHEDULERS, init_default_scope
from mmengine.runner import Runner
from torch import nn

from mmsoft.datasets.demo import on_shapes, retarget, with_counts
from mmsoft.datasets.shapes import CLASSES, STUFF, ensure_shapes
from mmsoft.utils import UsageError
from mmsoft.utils.config import LOADERS, datasets, dicts, load_config, split_pretrained

ROOT = Path(__file__).parents[2]
CONFIGS = [
    'retinanet_soft_small_1x',
    'mask_rcnn_soft_small_1x',
    'cascade_mask_rcnn_soft_small_3x',
    'atss_soft_small_3x',
    'gfl_soft_small_3x',
    'sparse_rcnn_soft_small_3x',
    'dino_soft_small_1x',
    'mask2former_soft_small_50e',
    'mask2former_panoptic_soft_small_50e',
    'rtmdet_soft_small_100e',
    'mask_rcnn_soft_small_lsj_100e',
    'retinanet_sima_cvt_13_1x',
    'mask_rcnn_sima_xcit_small_12_p16_3x',
    'upernet_soft_small_160k',
    'upernet_sima_xcit_small_12_p16_160k',
    'soft_small_in1k',
    'sima_xcit_small_12_p16_in1k',
]


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    return str(ensure_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=12, val=4, portraits=32))


@pytest.fixture
def load(tmp_path):
    """Reads a config of ours, or one that adds to a config of an OpenMMLab library."""

    def load(name, text=''):
        if '::' not in name:
            return load_config(str(ROOT / f'configs/{name}.py'))
        path = tmp_path / 'config.py'
        path.write_text(f"_base_ = '{name}'\n{text}")
        return load_config(str(path))

    return load


@pytest.fixture(params=CONFIGS)
def pair(request, load, root):
    """A config, and the same one on the shapes."""
    original = load(request.param)
    before = copy.deepcopy(original._cfg_dict)
    cfg = retarget(original, root=root)
    assert original._cfg_dict == before, 'the original was changed'
    return original, cfg


def test_our_configs_run_on_the_shapes(pair, root):
    original, cfg = pair
    init_default_scope(cfg.default_scope)
    count = len(CLASSES) + len(STUFF) * (cfg.default_scope == 'mmseg')

    for name in ('train_dataloader', 'val_dataloader'):
        if cfg.default_scope == 'mmpretrain':
            cfg[name].setdefault('collate_fn', dict(type='default_collate'))
        loader = Runner.build_dataloader(cfg[name], seed=0)
        assert len(loader.dataset.metainfo['classes']) == count
        assert cfg.get('test_pipeline') in (None, cfg.test_dataloader.dataset.pipeline)
        assert loader.dataset.test_mode == (name == 'val_dataloader') and not loader.num_workers
        batch = next(iter(loader))
        images = batch['inputs']
        assert len(images) == len(batch['data_samples']) == min(cfg[name].batch_size, len(loader.dataset))
        assert all(max(image.shape[1:]) <= 320 for image in images)
        if any(part.get('with_mask') for part in dicts(original.train_dataloader)) and name == 'train_dataloader':
            assert all(len(sample.gt_instances.masks) for sample in batch['data_samples'])

    counts, before = (
        [part['num_classes'] for part in dicts([one.model, one.get('data_preprocessor')]) if 'num_classes' in part]
        for one in (cfg, original)
    )
    assert set(counts) <= {count} and len(counts) == len(before)
    assert not [part for part in dicts(cfg.model) if split_pretrained(part)[1] or part.get('pretrained')]
    assert not any(part.get('norm_eval') or part.get('frozen_stages', -1) >= 0 for part in dicts(cfg.model))
    assert all(part['ann_file'].startswith(root) for part in dicts(cfg.val_evaluator) if 'ann_file' in part)
    assert cfg.test_evaluator == cfg.val_evaluator
    if cfg.default_scope == 'mmdet':
        masks = any(part.get('with_mask') for part in dicts(original.train_dataloader))
        assert cfg.val_evaluator.metric == ['bbox', 'segm'][: 1 + masks]
    assert cfg.model.get('data_preprocessor', {}).get('size') in (None, (192, 192))
    assert cfg.load_from is None
    scaling = cfg.get('auto_scale_lr') or {}
    assert bool(scaling.get('enable')) == bool(scaling.get('base_batch_size'))
    assert type(cfg.model) is type(original.model) and cfg.model.type == original.model.type
    Config.fromstring(cfg.pretty_text, '.py')  # which the runner saves beside the checkpoints


def test_schedules_fit_the_short_training(pair):
    _, cfg = pair
    key = 'max_iters' if 'max_iters' in cfg.train_cfg else 'max_epochs'
    assert cfg.train_cfg[key] <= 128
    assert 0 < cfg.train_cfg.val_interval <= cfg.train_cfg[key]
    assert cfg.default_hooks.checkpoint.interval <= cfg.train_cfg[key]
    assert {cfg[name].dataset.indices for name in LOADERS} == {128}
    assert cfg.default_hooks.logger.interval <= 10
    iters = cfg.train_cfg.get('max_iters') or 2 * -(-128 // cfg.train_dataloader.batch_size)
    warm_up, cosine = cfg.param_scheduler
    assert 0 < warm_up.end == cosine.begin < cosine.end == iters
    assert not warm_up.by_epoch and not cosine.by_epoch


@pytest.mark.parametrize(
    'name, kind, length, iters',
    [('retinanet_soft_small_1x', 'max_epochs', 6, 6 * 64), ('upernet_soft_small_160k', 'max_iters', 1000, 1000)],
)
def test_length_can_be_chosen(load, root, name, kind, length, iters):
    cfg = retarget(load(name), length, root)
    assert cfg.train_cfg[kind] == length
    assert cfg.param_scheduler[-1].end == iters


@pytest.mark.parametrize('name, iters', [('upernet_soft_small_160k', 1), ('retinanet_soft_small_1x', 43)])
def test_the_shortest_trainings_can_be_built(load, root, name, iters):
    """A single iteration is all warm-up; the last one of an epoch has what is left."""
    cfg = load(name)
    cfg.train_dataloader.batch_size, cfg.custom_hooks = 3, [dict(type='mmengine.EMAHook')]
    cfg = retarget(cfg, 1, root)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 1.0)
    warm_up, cosine = (PARAM_SCHEDULERS.build(dict(one, optimizer=optimizer)) for one in cfg.param_scheduler)
    assert cosine.end == max(iters, warm_up.end + 1) and cfg.train_cfg.val_interval == 1
    hook = HOOKS.build(cfg.custom_hooks[0])
    hook.before_run(SimpleNamespace(model=nn.Linear(1, 1)))
    assert 0.2 < hook.ema_model.momentum <= 0.5


@pytest.mark.parametrize('name', ['retinanet_soft_small_1x', 'upernet_soft_small_160k'])
def test_images_keep_their_proportions(load, root, name):
    """And label maps of tests their size; scores of boxes need the scale and the number of the image."""
    cfg = retarget(load(name), root=root)
    init_default_scope(cfg.default_scope)
    assert 'RandomFlip' in [step['type'] for step in cfg.train_dataloader.dataset.pipeline]
    for loader in ('train_dataloader', 'val_dataloader'):
        for sample in map(Runner.build_dataloader(dict(cfg[loader]), seed=0).dataset.__getitem__, range(3)):
            (height, width), one = sample['inputs'].shape[1:], sample['data_samples']
            assert height * one.ori_shape[1] == width * one.ori_shape[0] and max(height, width) > 128
            if cfg.default_scope == 'mmdet':
                assert {'img_id', 'img_path', 'scale_factor'} <= {*one.metainfo_keys()}
            elif loader == 'val_dataloader':
                assert one.gt_sem_seg.shape == one.ori_shape


@pytest.mark.parametrize('options', [dict(momentum=1e-4), {}, dict(momentum=0.4)], ids=str)
def test_averages_of_weights_follow_a_short_training(load, root, options):
    cfg = load('soft_small_in1k')
    cfg.custom_hooks = [*cfg.get('custom_hooks', []), dict(type='EMAHook', **options)]
    cfg = retarget(cfg, 2, root)
    iters = 2 * 128 / cfg.train_dataloader.batch_size
    assert (1 - cfg.custom_hooks[-1].momentum) ** iters < 1e-3, 'the random start is still in the average'
    assert cfg.custom_hooks[-1].momentum >= options.get('momentum', 0)


@pytest.mark.parametrize(
    'kind', ['StochasticWeightAverage', 'mmengine.StochasticWeightAverage', StochasticWeightAverage]
)
def test_a_plain_average_of_weights_has_no_momentum(load, root, kind):
    cfg = load('soft_small_in1k')
    cfg.custom_hooks = [dict(type='EMAHook', ema_type=kind)]
    hook = HOOKS.build(retarget(cfg, 2, root).custom_hooks[0])
    hook.before_run(SimpleNamespace(model=nn.Linear(1, 1)))
    assert hook.ema_model.steps == 0


@pytest.mark.parametrize(
    'name',
    [
        'mmdet::pascal_voc/faster-rcnn_r50_fpn_1x_voc0712.py',
        'mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py',
    ],
)
def test_other_data_are_replaced_too(load, root, name):
    cfg = retarget(load(name), root=root)
    assert {dataset.data_root for dataset in datasets(cfg)} == {root}
    counts = {part['num_classes'] for part in dicts(cfg.model) if 'num_classes' in part}
    assert counts == {len(CLASSES) + len(STUFF) * (cfg.default_scope == 'mmseg')}


def test_a_classifier_whose_data_are_repeated(load, root):
    text = "train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=2, dataset=_base_.train_dataloader.dataset))"
    cfg = retarget(load('mmpretrain::resnet/resnet18_8xb32_in1k.py', text), root=root)
    assert [step.type for step in cfg.train_dataloader.dataset.pipeline][-1] == 'PackInputs'


def test_data_that_were_loaded_ahead(load, root):
    text = 'train_dataloader = dict(num_workers=2, prefetch_factor=4)'
    cfg = retarget(load('mmdet::pascal_voc/faster-rcnn_r50_fpn_1x_voc0712.py', text), root=root)
    init_default_scope('mmdet')
    assert len(Runner.build_dataloader(cfg.train_dataloader)) > 0


@pytest.mark.parametrize(
    'name, says',
    [
        ('mmdet::panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py', 'no label maps beside boxes.*semantic_head'),
        ('mmdet::htc/htc_r50_fpn_1x_coco.py', 'no label maps beside boxes.*semantic_head'),
        ('mmpretrain::mae/mae_vit-base-p16_8xb512-amp-coslr-300e_in1k.py', 'has no val_dataloader, test_dataloader'),
    ],
)
def test_what_cannot_be_replaced_is_an_error(load, name, says):
    with pytest.raises(UsageError, match=says):
        retarget(load(name))


def test_a_config_for_the_shapes_stays_as_it_is(load):
    cfg = load('retinanet_soft_small_1x')
    next(datasets(cfg)).data_root = None
    for dataset in datasets(cfg):
        assert not on_shapes(cfg)
        dataset.data_root = 'data/shapes/'
    assert on_shapes(cfg) and retarget(cfg) is cfg


def test_a_model_of_few_queries_keeps_them(load, root):
    assert retarget(load('mmdet::detr/detr_r50_8xb2-150e_coco.py'), root=root).model.num_queries == 100


@pytest.mark.parametrize('name', ['mask2former_soft_small_50e', 'mask2former_panoptic_soft_small_50e'])
def test_mask2former_learns_things_alone_from_small_images(load, root, name):
    cfg = retarget(load(name), root=root)
    for head in (cfg.model.panoptic_head, cfg.model.panoptic_fusion_head):
        assert (head.num_things_classes, head.num_stuff_classes) == (len(CLASSES), 0)
    assert cfg.model.panoptic_head.loss_cls.class_weight == [1.0] * len(CLASSES) + [0.1]
    init_default_scope('mmdet')
    batch = next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0)))
    images = MODELS.build(cfg.model.data_preprocessor)(batch, training=True)['inputs']
    assert max(images.shape[2:]) <= 320


def test_dino_chooses_its_queries_from_no_more_places_than_an_image_has(load, root):
    cfg = retarget(load('dino_soft_small_1x'), root=root)
    init_default_scope('mmdet')
    _, rows, columns = next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0)))['inputs'][0].shape
    assert cfg.model.num_queries <= sum(-(-rows // stride) * -(-columns // stride) for stride in (8, 16, 32, 64))


def test_all_heads_get_the_number_of_classes():
    model = dict(rpn_head=dict(channels=1), roi_head=dict(bbox_head=[dict(num_classes=80), dict(num_classes=80)]))
    assert with_counts(model, 8) == dict(
        rpn_head=dict(channels=1), roi_head=dict(bbox_head=[dict(num_classes=8), dict(num_classes=8)])
    )


@pytest.mark.parametrize('several', [False, True])
@pytest.mark.parametrize('kind', [list, tuple])
@pytest.mark.parametrize('background', [[], [0.1]])
def test_weights_of_classes_are_as_many_as_classes(several, kind, background):
    """Segmenters weigh classes, Mask2Former of mmsegmentation none as well."""
    losses = [dict(type='CrossEntropyLoss', class_weight=kind([0.5] * 19 + background)), dict(type='DiceLoss')]
    losses = losses if several else losses[0]
    head = with_counts(dict(decode_head=dict(num_classes=19, loss_decode=losses)), 7)['decode_head']
    found = head['loss_decode'][0] if several else head['loss_decode']
    assert found['class_weight'] == [1.0] * 7 + background and head['num_classes'] == 7


def test_a_mask2former_of_mmsegmentation_has_weights_of_its_classes(load, root):
    cfg = retarget(load('mmseg::mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py'), root=root)
    assert cfg.model.decode_head.loss_cls.class_weight == [1.0] * len(CLASSES + STUFF) + [0.1]
