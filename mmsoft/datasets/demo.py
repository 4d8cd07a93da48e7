"""Runs a config of this repository on the synthetic shapes data set, on a CPU, within minutes."""
import math
from pathlib import Path
from typing import Any, Dict, Optional

from mmengine.config import Config

from ..utils import UsageError
from ..utils.config import EVALUATORS, LOADERS, datasets, dicts, map_dicts, type_name, without_pretrained
from .shapes import CLASSES, DEFAULT_ROOT, INSTANCES, STUFF, shapes_dataset

DATA = dict(mmdet='CocoDataset', mmseg='ADE20KDataset', mmpretrain='ImageNet')
"""Data sets that the shapes can stand for, by the library."""
SCENES, EPOCHS = 128, 2
BATCH_SIZE = dict(mmdet=4, mmseg=4, mmpretrain=8)
QUERIES = 100  # more than a scene has objects


def on_shapes(cfg: Config) -> bool:
    """Whether the config was written for the shapes: all its data is in ``data/shapes``."""
    roots = [Path(dataset.get('data_root') or '') for _, dataset in datasets(cfg)]
    return bool(roots) and all(root == Path(DEFAULT_ROOT) for root in roots)


def retarget(cfg: Config,
             max_epochs: Optional[int] = None,
             max_iters: Optional[int] = None,
             root: str = DEFAULT_ROOT) -> Config:
    """Makes a config run on the shapes.

    It keeps its model, losses and optimizer, and a classifier its augmentation. It gets the shapes as data, small
    images, random weights, and two epochs of 128 scenes with a warm-up and a cosine schedule. The learning rate follows
    the batch size if the config says what it is meant for.

    Args:
        cfg: Config on COCO (boxes or masks), ADE20K or ImageNet, as those of this repository. It is left as it is.
        max_epochs: Length of the schedule if it counts epochs; 2 if None.
        max_iters: Length of the schedule if it counts iterations; as many as two epochs have if None.
        root: Where the shapes are.

    Returns:
        The new config; the same one if it was written for the shapes.

    Raises:
        UsageError: If the config is on other data, or does not count what is given as its length.
    """
    if on_shapes(cfg):
        return cfg
    cfg, scope = without_pretrained(cfg), cfg.default_scope
    others = {type_name(dataset) for _, dataset in datasets(cfg)} - {DATA[scope]}
    if others:
        raise UsageError('--demo-data is for configs on COCO, ADE20K and ImageNet, as those in configs/; this one is '
                         f'on {", ".join(sorted(others))}.')
    with_masks = any(part.get('with_mask') for part in dicts(cfg.get('train_dataloader')))
    for name in filter(cfg.get, LOADERS):
        split = 'train' if name.startswith('train') else 'val'
        dataset = dict(shapes_dataset(scope, root, split), indices=SCENES, test_mode=split == 'val',
                       pipeline=_pipeline(cfg[name]['dataset'], scope, split, with_masks))
        if scope == 'mmdet':
            dataset['filter_cfg'] = dict(filter_empty_gt=True)
        loader = {key: value for key, value in cfg[name].items() if key != 'prefetch_factor'}
        cfg[name] = dict(loader, dataset=dataset, batch_size=min(loader['batch_size'], BATCH_SIZE[scope]),
                         num_workers=0, persistent_workers=False)
    metrics = dict(
        mmdet=dict(type='CocoMetric', ann_file=f'{root}/{INSTANCES["val"]}', metric=['bbox', 'segm'][:1 + with_masks]),
        mmseg=dict(type='IoUMetric', iou_metrics=['mIoU']),
        mmpretrain=cfg.get('val_evaluator') or cfg.get('test_evaluator'))
    for name in filter(cfg.get, EVALUATORS):
        cfg[name] = metrics[scope]
    count = len(CLASSES + STUFF if scope == 'mmseg' else CLASSES)
    for name in filter(cfg.get, ('model', 'data_preprocessor')):
        cfg[name] = with_counts(cfg[name], count)
    if 'size' in cfg.model.get('data_preprocessor', {}):
        cfg.model.data_preprocessor.size = (192, 192)
    if cfg.get('train_dataloader'):
        _shorten(cfg, max_epochs, max_iters)
    return cfg


def _pipeline(dataset: Dict[str, Any], scope: str, split: str, with_masks: bool) -> list:
    """A classifier's own pipeline, as many are made for one size; of others, one for small images."""
    if scope == 'mmpretrain':
        return dataset['pipeline']
    load = dict(type='LoadImageFromFile')
    if scope == 'mmseg':
        resize, annotations, pack = dict(type='Resize', scale=(192, 192), keep_ratio=True), {}, 'PackSegInputs'
    else:
        resize, pack = dict(type='Resize', scale=(320, 192), keep_ratio=True), 'PackDetInputs'
        annotations = dict(with_bbox=True, with_mask=with_masks)
    annotations = dict(type='LoadAnnotations', **annotations)
    if split == 'train':
        return [load, annotations, resize, dict(type='RandomFlip', prob=0.5), dict(type=pack)]
    keys = ('img_id', 'img_path', 'seg_map_path', 'ori_shape', 'img_shape', 'scale_factor', 'reduce_zero_label')
    return [load, resize, annotations, dict(type=pack, meta_keys=keys)]


def with_counts(model: Dict[str, Any], count: int) -> Dict[str, Any]:
    """The same model for another number of classes, and with queries for small images.

    Args:
        model: Config of a detector, segmenter or classifier, or a part of it; it is left as it is.
        count: Number of classes.
    """

    def visit(part: Dict[str, Any]) -> Dict[str, Any]:
        counts = dict(num_classes=count, num_things_classes=count, num_stuff_classes=0)
        part.update({key: value for key, value in counts.items() if isinstance(part.get(key), int)})
        if isinstance(part.get('num_queries'), int):
            part['num_queries'] = min(part['num_queries'], QUERIES)
        weight = part.get('class_weight')
        if isinstance(weight, (list, tuple)):  # equal ones stay, with that of 'no object' behind; others are dropped
            last = [weight[-1]] * (weight[-1] != weight[0])
            part['class_weight'] = [weight[0]] * count + last if len(set(weight[:-1])) == 1 else None
        return part

    # A region proposal network tells objects from background, whatever the classes.
    return dict(map_dicts(model, visit), **{key: model[key] for key in ('rpn_head', ) if key in model})


def _shorten(cfg: Config, max_epochs: Optional[int], max_iters: Optional[int]) -> None:
    """Shortens the training: learning rates, averages of weights, intervals of validation, saving and logging."""
    per_epoch = math.ceil(SCENES / cfg.train_dataloader.batch_size)
    by_epoch = 'max_iters' not in cfg.train_cfg
    key, other = ('max_epochs', 'max_iters') if by_epoch else ('max_iters', 'max_epochs')
    if max_iters if by_epoch else max_epochs:
        raise UsageError(f'This config counts its training in {key}; give train_cfg.{key} instead of '
                         f'train_cfg.{other}.')
    length = (max_epochs or EPOCHS) if by_epoch else (max_iters or EPOCHS * per_epoch)
    iters, interval = (length * per_epoch, 1) if by_epoch else (length, max(1, length // 2))
    cfg.train_cfg.update({key: length, 'val_interval': interval})
    cfg.train_cfg.pop('dynamic_intervals', None)
    warm_up = max(1, iters // 4)
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=1e-3, by_epoch=False, end=warm_up),
        dict(type='CosineAnnealingLR', by_epoch=False, begin=warm_up, end=max(iters, warm_up + 1))
    ]
    for hook in cfg.get('custom_hooks') or []:  # an average over many thousand iterations would be the random start
        if type_name(hook) == 'EMAHook' and 'momentum' in hook:
            hook['momentum'] = max(hook['momentum'], min(0.5, 10 / iters))
    hooks = cfg.setdefault('default_hooks', {})
    hooks.setdefault('checkpoint', dict(type='CheckpointHook')).update(interval=interval)
    hooks.setdefault('logger', dict(type='LoggerHook')).update(interval=max(1, min(10, per_epoch // 4)))
    if (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
        cfg.auto_scale_lr.enable = True
