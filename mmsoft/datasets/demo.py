"""Runs a config of this repository on the synthetic shapes data set, on a CPU, within minutes."""

import math
from pathlib import Path
from typing import Any, Optional

from mmengine.config import Config

from mmsoft.utils import UsageError
from mmsoft.utils.config import LOADERS, datasets, dicts, override, type_name, without_pretrained

from .shapes import CLASSES, DEFAULT_ROOT, INSTANCES, STUFF, shapes_dataset

SCENES, EPOCHS, BATCH_SIZE = 128, 2, dict(mmdet=4, mmseg=4, mmpretrain=8)


def on_shapes(cfg: Config) -> bool:
    """Whether the config was written for the synthetic shapes data set: all its data is in ``data/shapes``."""
    return {Path(dataset.get('data_root') or '') for dataset in datasets(cfg)} == {Path(DEFAULT_ROOT)}


def retarget(cfg: Config, length: Optional[int] = None, root: str = DEFAULT_ROOT) -> Config:
    """Makes a config run on the synthetic shapes data set, with small images, random weights and a short schedule.

    The config keeps its model, losses and optimizer; a classifier also keeps its augmentation. The learning rate
    follows the batch size if the config has ``auto_scale_lr``. A config written for the data set is returned, others
    are copied. ``length`` is a number of epochs or iterations, whichever the config counts; None means two epochs of
    128 scenes. ``root`` is the folder of the data set. Raises UsageError if the config needs what the data set lacks.
    """
    if on_shapes(cfg):
        return cfg
    if missing := [name for name in LOADERS if not cfg.get(name)]:
        raise UsageError(f'--demo-data replaces the data of a config, and this one has no {", ".join(missing)}.')
    if any(part.get('semantic_head') for part in dicts(cfg.model)):
        raise UsageError('--demo-data has no label maps beside boxes; take a config that has no semantic_head.')
    cfg, scope = without_pretrained(cfg), cfg.default_scope
    masks = any(part.get('with_mask') for part in dicts(cfg.train_dataloader))
    for name in LOADERS:
        split = 'train' if name.startswith('train') else 'val'
        dataset = dict(shapes_dataset(scope, root, split), indices=SCENES, test_mode=split == 'val')
        keeps = scope == 'mmpretrain'  # the pipeline: many fit only one size
        dataset['pipeline'] = next(datasets(cfg, name))['pipeline'] if keeps else _pipeline(scope, split, masks)
        cfg[name].dataset = dataset
        batch_size = min(cfg[name].batch_size, BATCH_SIZE[scope])
        cfg[name].update(batch_size=batch_size, num_workers=0, persistent_workers=False, prefetch_factor=None)
    override(cfg, test_pipeline=cfg.test_dataloader.dataset.pipeline)  # which mmseg's inference_model reads
    cfg.val_evaluator = cfg.test_evaluator = dict(
        mmdet=dict(type='CocoMetric', ann_file=f'{root}/{INSTANCES["val"]}', metric=['bbox', 'segm'][: 1 + masks]),
        mmseg=dict(type='IoUMetric', iou_metrics=['mIoU']),
        mmpretrain=cfg.val_evaluator,
    )[scope]
    count = len(CLASSES + STUFF if scope == 'mmseg' else CLASSES)
    with_counts(dict(model=cfg.model, beside=cfg.get('data_preprocessor')), count)
    override(cfg.model, num_queries=min(cfg.model.get('num_queries', 0), 300))  # a small image has no more places
    # Segmenters pad to a size, and detectors that have batch_augments pad or resize to a large one.
    override(cfg.model.get('data_preprocessor', {}), size=(192, 192), batch_augments=None)
    _shorten(cfg, length)
    return cfg


def _pipeline(scope: str, split: str, masks: bool) -> list:
    """A pipeline for small images, of a segmenter or a detector with or without masks."""
    annotations, scale, pack = dict(type='LoadAnnotations'), (192, 192), dict(type='PackSegInputs')
    if scope == 'mmdet':
        annotations.update(with_bbox=True, with_mask=masks)
        keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')  # without flip
        scale, pack = (320, 192), dict(type='PackDetInputs', meta_keys=keys)
    resize = dict(type='Resize', scale=scale, keep_ratio=True)
    changes = [annotations, resize, dict(type='RandomFlip', prob=0.5)] if split == 'train' else [resize, annotations]
    return [dict(type='LoadImageFromFile'), *changes, pack]


def with_counts(model: dict[str, Any], count: int) -> dict[str, Any]:
    """Changes the number of classes of a model, or of a part of it, in place; all are things. Returns the model."""
    for part in dicts(model):
        own = part.get('num_classes') or part.get('num_things_classes', 0) + part.get('num_stuff_classes', 0)
        for loss in [one for one in dicts(part) if own and isinstance(one.get('class_weight'), (list, tuple))]:
            loss['class_weight'] = [1.0] * count + list(loss['class_weight'][own:])  # Mask2Former adds one of no class
        override(part, num_classes=count, num_things_classes=count, num_stuff_classes=0)
    return model


def _shorten(cfg: Config, length: Optional[int]) -> None:
    """Shortens the training: schedules, averages of weights, intervals of validation, saving and logging."""
    per_epoch = math.ceil(SCENES / cfg.train_dataloader.batch_size)
    by_epoch = 'max_iters' not in cfg.train_cfg
    length = length or (EPOCHS if by_epoch else EPOCHS * per_epoch)
    iters, interval = (length * per_epoch, 1) if by_epoch else (length, max(1, length // 2))
    cfg.train_cfg.update({'max_epochs' if by_epoch else 'max_iters': length, 'val_interval': interval})
    warm_up = max(1, iters // 4)
    decay = dict(type='CosineAnnealingLR', by_epoch=False, begin=warm_up, end=max(iters, warm_up + 1))
    cfg.param_scheduler = [dict(type='LinearLR', start_factor=1e-3, by_epoch=False, end=warm_up), decay]
    for hook in cfg.get('custom_hooks', []):  # an average over thousands of iterations would stay near the random start
        if type_name(hook) == 'EMAHook' and type_name(hook, 'ema_type') != 'StochasticWeightAverage':
            hook.momentum = max(hook.get('momentum', 0.0002), min(0.5, 10 / iters))
    cfg.default_hooks.checkpoint.interval = interval
    cfg.default_hooks.logger.interval = max(1, min(10, per_epoch // 4))
    if (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
        cfg.auto_scale_lr.enable = True
