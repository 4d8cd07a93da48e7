"""From a run to a config: a method of the zoo at a quarter of its width, with a small backbone, on the shapes."""
from pathlib import Path
from typing import Any, Dict, List, Optional

from mmengine.config import Config
from mmengine.runner import find_latest_checkpoint

import mmsoft
from mmsoft.utils.config import load_config, map_dicts
from mmsoft.datasets.shapes import METAINFO, SEMANTIC_METAINFO
from mmsoft.datasets.shapes_formats import coco_path, image_folder, label_folder, portrait_folder
from .backbones import BACKBONES, Backbone
from .rows import METHODS, SHAPES, Method, Run, start

CONFIGS = Path(mmsoft.__file__).parent.parent / 'configs'
NARROWER = 4
SEED = 0
SCORES = {
    'mmdet': {'coco/bbox_mAP_50': 'box AP50', 'coco/bbox_mAP': 'box AP', 'coco/segm_mAP_50': 'mask AP50',
              'coco/segm_mAP': 'mask AP'},
    'mmseg': {'mIoU': 'mIoU'},
    'mmpretrain': {'accuracy/top1': 'top-1'},
}
"""The hosts' names of the scores, and ours."""


def make_config(run: Run, root: str, work_dir: str, iterations: Optional[int] = None) -> Config:
    """The whole config of a training.

    Args:
        run: What is trained.
        root: Folder of the shapes.
        work_dir: Where logs and checkpoints go.
        iterations: Length of the training, if not the method's own.

    Returns:
        A config for :class:`mmengine.runner.Runner`.
    """
    method, backbone = METHODS[run.method], started(run, work_dir)
    zoo = load_config(str(CONFIGS / f'{method.config}.py'))
    zoo.merge_from_dict({f'model.{key}': value for key, value in method.options.items()})
    model = zoo.model.to_dict()
    if method.stages:
        _cut(model, method.stages)
    cfg = Config(dict(model=_MODELS[zoo.default_scope](model, backbone)))
    cfg.merge_from_dict(_data(zoo.default_scope, method, root))
    cfg.merge_from_dict(_training(method.lr, iterations or method.iterations))
    cfg.merge_from_dict({key: zoo[key] for key in ('default_scope', 'visualizer', 'env_cfg') if key in zoo})
    cfg.update(work_dir=work_dir, resume=True, load_from=None, log_level='WARNING')
    return cfg


def started(run: Run, work_dir: str) -> Backbone:
    """A run's backbone, from the last weights of the training that it starts from, if any."""
    backbone, before = BACKBONES[run.backbone], start(run)
    if before is None:
        return backbone
    weights = find_latest_checkpoint(str(Path(work_dir).parent / before.name))
    return backbone._replace(dense=dict(backbone.dense, init_cfg=dict(type='Pretrained', checkpoint=weights)))


def _cut(model: Dict[str, Any], stages: int) -> None:
    """Leaves the first few stages of a head that refines its boxes."""
    head, training = model['roi_head'], model['train_cfg']
    head.update(
        num_stages=stages,
        stage_loss_weights=head['stage_loss_weights'][:stages],
        bbox_head=head['bbox_head'][:stages])
    training['rcnn'] = training['rcnn'][:stages]


def _narrow(part: Dict[str, Any]) -> Dict[str, Any]:
    """A part of a model with fewer channels and the shapes' classes."""
    for key, value in part.items():
        if key.endswith(('channels', 'channel')) and isinstance(value, int) and value >= 64:
            part[key] = value // NARROWER
    if isinstance(part.get('num_classes'), int):
        part['num_classes'] = len(METAINFO['classes'])
    return part


def _pyramid(neck: Dict[str, Any], backbone: Backbone) -> List[Dict[str, Any]]:
    neck = dict(neck, in_channels=list(backbone.channels), norm_cfg=dict(type='BN'))
    if backbone.rescales is None:
        return neck
    rescale = dict(type='mmsoft.RescalePyramid', in_channels=backbone.channels[0], rescales=backbone.rescales)
    return [rescale, neck]


def _detector(model: Dict[str, Any], backbone: Backbone) -> Dict[str, Any]:
    proposing = model.get('rpn_head', {}).get('num_classes')
    model = map_dicts(model, _narrow)
    if proposing:  # objects from background, whatever the classes
        model['rpn_head']['num_classes'] = proposing
    return dict(model, backbone=backbone.dense, neck=_pyramid(model['neck'], backbone))


def _segmenter(model: Dict[str, Any], backbone: Backbone) -> Dict[str, Any]:
    model = map_dicts(model, _narrow)
    size = (SHAPES['size'], ) * 2
    model['data_preprocessor'].update(size=size, test_cfg=dict(size=size))
    model['decode_head'].update(
        in_channels=list(backbone.channels),
        channels=64,
        num_classes=len(SEMANTIC_METAINFO['classes']),
        norm_cfg=dict(type='BN'))
    return dict(model, backbone=backbone.dense, auxiliary_head=None)


def _classifier(model: Dict[str, Any], backbone: Backbone) -> Dict[str, Any]:
    head = dict(model['head'], num_classes=len(METAINFO['classes']), in_channels=backbone.channels[-1])
    neck = dict(type='GlobalAveragePooling') if backbone.pooled else None
    preprocessor = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True)
    return dict(
        type='ImageClassifier',
        data_preprocessor=dict(preprocessor, num_classes=len(METAINFO['classes'])),
        backbone={**backbone.dense, **backbone.classifier},
        neck=neck,
        head=head)


_MODELS = dict(mmdet=_detector, mmseg=_segmenter, mmpretrain=_classifier)


def _dataset(scope: str, split: str) -> Dict[str, Any]:
    """The form of the shapes that a host reads."""
    return dict(
        mmdet=dict(
            type='CocoDataset',
            ann_file=coco_path(split),
            data_prefix=dict(img=image_folder(split)),
            metainfo=METAINFO,
            filter_cfg=dict(filter_empty_gt=True)),
        mmseg=dict(
            type='BaseSegDataset',
            data_prefix=dict(img_path=image_folder(split), seg_map_path=label_folder(split)),
            metainfo=SEMANTIC_METAINFO,
            reduce_zero_label=True),
        mmpretrain=dict(type='CustomDataset', data_prefix=portrait_folder(split), metainfo=METAINFO))[scope]


def _pipeline(scope: str, masks: bool, split: str) -> List[Dict[str, Any]]:
    """Half of the pictures to train on are mirrored; the others are as they are, with the keys that hosts expect."""
    labels = dict(
        mmdet=[dict(type='LoadAnnotations', with_bbox=True, with_mask=masks)],
        mmseg=[dict(type='LoadAnnotations')],
        mmpretrain=[])[scope]
    changes = [dict(type='RandomFlip', prob=0.5)]
    if split == 'val':
        changes = [] if scope == 'mmpretrain' else [dict(type='Resize', scale_factor=1.0)]
    packing = dict(mmdet='PackDetInputs', mmseg='PackSegInputs', mmpretrain='PackInputs')[scope]
    return [dict(type='LoadImageFromFile'), *labels, *changes, dict(type=packing)]


def _loader(scope: str, method: Method, root: str, split: str) -> Dict[str, Any]:
    dataset = dict(_dataset(scope, split), data_root=root, pipeline=_pipeline(scope, method.masks, split))
    return dict(
        batch_size=method.batch_size,
        num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=False),
        collate_fn=dict(type='default_collate' if scope == 'mmpretrain' else 'pseudo_collate'),
        dataset=dict(dataset, test_mode=split == 'val'))


def _data(scope: str, method: Method, root: str) -> Dict[str, Any]:
    """Loaders of the training and the held-out pictures, and how these are scored."""
    train, val = (_loader(scope, method, root, split) for split in ('train', 'val'))
    train['sampler'] = dict(type='InfiniteSampler', shuffle=True)
    evaluator = dict(type='Accuracy')
    if scope == 'mmdet':
        train['batch_sampler'] = dict(type='AspectRatioBatchSampler')
        metrics = ['bbox', 'segm'] if method.masks else ['bbox']
        evaluator = dict(type='CocoMetric', ann_file=f'{root}/{coco_path("val")}', metric=metrics)
    elif scope == 'mmseg':
        val['batch_size'] = 1  # scenes of different shapes
        evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
    return dict(train_dataloader=train, test_dataloader=val, test_cfg=dict(), test_evaluator=evaluator)


def _training(lr: float, iterations: int) -> Dict[str, Any]:
    """Optimizer, schedule and hooks, the same for all but for the learning rate and the length."""
    return dict(
        train_cfg=dict(by_epoch=False, max_iters=iterations),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=lr, weight_decay=0.05), clip_grad=dict(max_norm=5)),
        param_scheduler=[
            dict(type='LinearLR', start_factor=0.05, by_epoch=False, end=iterations // 10),
            dict(type='CosineAnnealingLR', T_max=iterations, eta_min=lr / 100, by_epoch=False)
        ],
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=min(10, iterations), log_metric_by_epoch=False),
            checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=min(50, iterations // 2), max_keep_ckpts=1)),
        log_processor=dict(by_epoch=False, window_size=10),
        randomness=dict(seed=SEED))
