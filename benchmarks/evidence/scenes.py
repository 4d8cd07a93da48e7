"""Trains a method of the zoo, with a small backbone and a quarter of its width, on the synthetic shapes."""

from pathlib import Path
from typing import Any, Optional

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmsoft.datasets.demo import with_counts
from mmsoft.datasets.shapes import CLASSES, INSTANCES, SKY_METAINFO, STUFF, shapes_dataset
from mmsoft.utils.config import dicts, load_config

from ..common import ROOT
from .methods import SHAPES, Method
from .networks import NETWORKS, Network, scored

NARROWER = 4
SCORES = {
    'coco/bbox_mAP_50': 'box AP50',
    'coco/bbox_mAP': 'box AP',
    'coco/segm_mAP_50': 'mask AP50',
    'coco/segm_mAP': 'mask AP',
    'mIoU': 'mIoU',
    'accuracy/top1': 'top-1',
}
"""The names that the OpenMMLab libraries give the scores, and ours."""


def train(method: Method, seed: int, root: str, work_dir: str, iterations: Optional[int] = None) -> dict[str, Any]:
    """Trains, or goes on from the last checkpoint in the folder; returns scores and shares.

    Args:
        method: What is trained.
        seed: Of weights and batches.
        root: Folder of the shapes.
        work_dir: Where logs and checkpoints go.
        iterations: Length of the training, if not the method's own.
    """
    return run(make_config(method, seed, root, work_dir, iterations))


def run(cfg: Config, *hooks: Hook) -> dict[str, Any]:
    """Trains by a config and with more hooks; returns scores with attention and without, shares and more."""
    runner = Runner.from_cfg(cfg)
    for hook in hooks:
        runner.register_hook(hook)
    runner.train()

    def scores() -> dict[str, float]:  # none if nothing is detected; mmseg and mmpretrain count in percent
        found = runner.test() or dict.fromkeys(('coco/bbox_mAP_50', 'coco/bbox_mAP'), 0.0)
        found = {SCORES[key]: value for key, value in found.items() if key in SCORES}
        return {name: value if value <= 1 else value / 100 for name, value in found.items()}

    parameters = sum(parameter.numel() for parameter in runner.model.parameters())
    found = scored(runner.model.backbone, scores)
    return dict(found, iterations=cfg.train_cfg.max_iters, parameters=parameters)


def make_config(method: Method, seed: int, root: str, work_dir: str, iterations: Optional[int] = None) -> Config:
    """The whole config of a training, for :class:`mmengine.runner.Runner`; see :func:`train`."""
    zoo = load_config(str(ROOT / f'configs/{method.config}.py'))
    zoo.merge_from_dict({f'model.{key}': value for key, value in method.options.items()})
    scope = zoo.default_scope
    model = _MODELS[scope](zoo.model.to_dict(), NETWORKS[method.network], method.sky)
    with_masks = 'mask_head' in model.get('roi_head', ()) or 'panoptic_head' in model
    cfg = Config(
        dict(
            _data(scope, method, root, with_masks),
            **_training(method, iterations or method.iterations, seed),
            **{key: zoo[key] for key in ('default_scope', 'visualizer', 'env_cfg') if key in zoo},
            model=model,
            work_dir=str(Path(work_dir)),
            resume=True,
            load_from=None,
            log_level='WARNING',
        )
    )
    if 'constructor' in zoo.optim_wrapper:  # of learning rates that decay from layer to layer
        cfg.optim_wrapper.constructor = zoo.optim_wrapper.constructor
        cfg.optim_wrapper.paramwise_cfg.layer_decay_rate = zoo.optim_wrapper.paramwise_cfg.layer_decay_rate
    return cfg


def _narrow(model: dict[str, Any]) -> dict[str, Any]:
    """The same model, changed in place to fewer channels."""
    for part in dicts(model):
        for key, value in part.items():
            if key.endswith(('channels', 'channel')) and isinstance(value, int) and value >= 64:
                part[key] = value // NARROWER
    return model


def _detector(model: dict[str, Any], network: Network, sky: bool) -> dict[str, Any]:
    model = with_counts(_narrow(model), len(SKY_METAINFO['classes'] if sky else CLASSES))
    head = model.get('roi_head', {})
    if 'num_stages' in head:  # as many as are asked for, of those that it has
        stages = slice(head['num_stages'])
        head.update({key: head[key][stages] for key in ('stage_loss_weights', 'bbox_head')})
        model['train_cfg']['rcnn'] = model['train_cfg']['rcnn'][stages]
    if model['type'] == 'DINO':  # as in the zoo, it does without the first map
        network = network._replace(cfg=dict(network.cfg, out_indices=(1, 2)), channels=network.channels[1:])
    if 'panoptic_head' in model:  # there is no neck
        model['panoptic_head'].update(in_channels=list(network.channels))
        return dict(model, backbone=network.cfg)
    neck = dict(model['neck'], in_channels=list(network.channels), norm_cfg=dict(type='BN'))
    if network.rescales:
        rescale = dict(type='mmsoft.RescalePyramid', in_channels=network.channels[0], rescales=network.rescales)
        neck = [rescale, neck]
    return dict(model, backbone=network.cfg, neck=neck)


def _segmenter(model: dict[str, Any], network: Network, sky: bool) -> dict[str, Any]:
    model = with_counts(_narrow(model), len(CLASSES + STUFF))
    size = (SHAPES['size'],) * 2
    model['data_preprocessor'].update(size=size, test_cfg=dict(size=size))
    maps = dict(in_channels=list(network.channels), in_index=list(range(len(network.channels))))
    model['decode_head'].update(maps, channels=64, norm_cfg=dict(type='BN'))
    return dict(model, backbone=network.cfg, auxiliary_head=None)


def _classifier(model: dict[str, Any], network: Network, sky: bool) -> dict[str, Any]:
    preprocessor = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True)
    return dict(
        type='ImageClassifier',
        data_preprocessor=dict(preprocessor, num_classes=len(CLASSES)),
        backbone=network.cfg,
        neck=dict(type='GlobalAveragePooling'),
        head=dict(model['head'], num_classes=len(CLASSES), in_channels=network.channels[-1]),
    )


_MODELS = dict(mmdet=_detector, mmseg=_segmenter, mmpretrain=_classifier)


def _pipeline(scope: str, with_masks: bool, *changes: dict[str, Any]) -> list[dict[str, Any]]:
    loading, packing = dict(
        mmdet=([dict(type='LoadAnnotations', with_bbox=True, with_mask=with_masks)], 'PackDetInputs'),
        mmseg=([dict(type='LoadAnnotations')], 'PackSegInputs'),
        mmpretrain=([], 'PackInputs'),
    )[scope]
    return [dict(type='LoadImageFromFile'), *loading, *changes, dict(type=packing)]


def _data(scope: str, method: Method, root: str, with_masks: bool) -> dict[str, Any]:
    """Loaders of the training and the held-out images, and how these are scored."""
    splits = {split: dict(shapes_dataset(scope, root, split), test_mode=split == 'val') for split in ('train', 'val')}
    val_file = INSTANCES['val']
    if method.sky:
        val_file = 'sky/val.json'
        for split, one in splits.items():
            one.update(ann_file=f'sky/{split}.json', data_prefix=dict(img=f'sky/{split}'), metainfo=SKY_METAINFO)
    evaluator = dict(
        mmdet=dict(type='CocoMetric', ann_file=f'{root}/{val_file}', metric=['bbox', 'segm'][: 1 + with_masks]),
        mmseg=dict(type='IoUMetric', iou_metrics=['mIoU']),
        mmpretrain=dict(type='Accuracy'),
    )[scope]
    loader = dict(
        batch_size=method.batch_size,
        num_workers=0,
        collate_fn=dict(type='default_collate' if scope == 'mmpretrain' else 'pseudo_collate'),
    )
    train, val = splits.values()
    train['pipeline'] = _pipeline(scope, with_masks, dict(type='RandomFlip', prob=0.5))
    same_size = [] if scope == 'mmpretrain' else [dict(type='Resize', scale_factor=1.0)]  # whose keys are expected
    val['pipeline'] = _pipeline(scope, with_masks, *same_size)
    train = dict(loader, dataset=train, sampler=dict(type='InfiniteSampler', shuffle=True))
    val = dict(loader, dataset=val, sampler=dict(type='DefaultSampler', shuffle=False))
    if scope == 'mmdet':
        train['batch_sampler'] = dict(type='AspectRatioBatchSampler')
    elif scope == 'mmseg':
        val['batch_size'] = 1  # scenes of different shapes
    return dict(train_dataloader=train, test_dataloader=val, test_cfg=dict(), test_evaluator=evaluator)


def _training(method: Method, iterations: int, seed: int) -> dict[str, Any]:
    """Optimizer, schedule and hooks, the same for all but for the learning rates and the length."""
    return dict(
        train_cfg=dict(by_epoch=False, max_iters=iterations),
        optim_wrapper=dict(
            optimizer=dict(type='AdamW', lr=method.lr, weight_decay=0.05),
            clip_grad=dict(max_norm=5),
            paramwise_cfg=dict(
                custom_keys={key: dict(lr_mult=factor) for key, factor in method.slow.items()},
                bypass_duplicate=True,  # heads share layers
            ),
        ),
        param_scheduler=[
            dict(type='LinearLR', start_factor=0.05, by_epoch=False, end=max(1, iterations // 10)),
            dict(type='CosineAnnealingLR', T_max=iterations, eta_min=method.lr / 100, by_epoch=False),
        ],
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=min(10, iterations), log_metric_by_epoch=False),
            checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=min(50, iterations // 2), max_keep_ckpts=1),
        ),
        log_processor=dict(by_epoch=False, window_size=10),
        randomness=dict(seed=seed),
    )
