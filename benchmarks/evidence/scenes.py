"""Trains a method of the zoo, with a small backbone and a quarter of its width, on the synthetic shapes."""

from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmsoft.datasets.demo import with_counts
from mmsoft.datasets.shapes import CLASSES, SKY_METAINFO, STUFF, shapes_dataset
from mmsoft.utils.config import dicts, load_config

from ..common import ROOT
from .networks import NETWORKS, Network, scored
from .panoptic import BackgroundAsStuff, PanopticQuality

SHAPES = dict(train=1800, val=200, portraits=2400, size=96, portrait_size=64, seed=0)
"""Of :func:`mmsoft.datasets.shapes.ensure_shapes`."""
NARROWER = 4
_MAPS = dict(DINO=slice(1, None), RTMDet=slice(3))
"""Of a network's maps from the finest, those of a detector, as in the zoo; all, if it is not here."""
SCORES = {
    'coco/bbox_mAP_50': 'box AP50',
    'coco/bbox_mAP': 'box AP',
    'coco/segm_mAP_50': 'mask AP50',
    'coco/segm_mAP': 'mask AP',
    'panoptic/PQ': 'PQ',
    'mIoU': 'mIoU',
    'accuracy/top1': 'top-1',
}
"""The names that the OpenMMLab libraries give the scores, and ours."""


class Method(NamedTuple):
    """A method of the zoo at a fraction of its width, on synthetic shapes.

    Attributes:
        config: The config that it is made of.
        network: A key of :data:`benchmarks.evidence.networks.NETWORKS`.
        iterations: Length of the training, in batches of :attr:`batch_size`.
        options: Settings of the model by dotted keys, as ``--cfg-options`` has them.
        batch_size: Images in a batch.
        lr: Maximum of the learning rate.
        slow: Factors of the learning rate for parameters whose names contain the keys.
        sky: Whether it detects in scenes under a sky, where classes of day and night are told by the sky alone.
    """

    config: str
    network: str = 'soft_norm'
    iterations: int = 450
    options: dict[str, Any] = {}
    batch_size: int = 8
    lr: float = 2e-3
    slow: dict[str, float] = {}
    sky: bool = True

    def train(self, seed: int, root: Path, work_dir: Path) -> dict[str, Any]:
        """Trains on scenes in a folder, or goes on from the last checkpoint; returns what :func:`run` does."""
        return run(self.make_config(seed, root, work_dir))

    def make_config(self, seed: int, root: Path, work_dir: Path) -> Config:
        """The whole config of a training, for :class:`mmengine.runner.Runner`."""
        zoo = load_config(str(ROOT / f'configs/{self.config}.py'))
        if isinstance(zoo.model.get('neck'), list):  # the first of which makes a pyramid, as the small network's does
            zoo.model.neck = zoo.model.neck[-1]
        zoo.merge_from_dict({f'model.{key}': value for key, value in self.options.items()})
        scope = zoo.default_scope
        model = _MODELS[scope](zoo.model.to_dict(), NETWORKS[self.network], self.sky)
        cfg = Config(
            dict(
                _data(scope, self, str(root), model),
                **_training(self, seed),
                **{key: zoo[key] for key in ('default_scope', 'visualizer', 'env_cfg') if key in zoo},
                model=model,
                work_dir=str(work_dir),
                experiment_name=str(work_dir),  # by the second alone, mmengine would mix up runs and their scopes
                resume=True,
                load_from=None,
                log_level='WARNING',
            )
        )
        if 'constructor' in zoo.optim_wrapper:  # of learning rates that decay from layer to layer
            cfg.optim_wrapper.constructor = zoo.optim_wrapper.constructor
            cfg.optim_wrapper.paramwise_cfg.layer_decay_rate = zoo.optim_wrapper.paramwise_cfg.layer_decay_rate
        return cfg


def run(cfg: Config, *hooks: Hook) -> dict[str, Any]:
    """Trains by a config and with more hooks; returns scores with attention and without, shares and more."""
    runner = Runner.from_cfg(cfg)
    for hook in hooks:
        runner.register_hook(hook)
    runner.train()

    def scores() -> dict[str, float]:  # none if nothing is detected; mmseg and mmpretrain count in percent
        none = dict.fromkeys(('coco/bbox_mAP_50', 'coco/bbox_mAP'), 0.0) if cfg.default_scope == 'mmdet' else {}
        found = {SCORES[key]: value for key, value in {**none, **runner.test()}.items() if key in SCORES}
        return {name: value / (1 if cfg.default_scope == 'mmdet' else 100) for name, value in found.items()}

    parameters = sum(parameter.numel() for parameter in runner.model.parameters())
    found = scored(runner.model.backbone, scores)
    return dict(found, iterations=cfg.train_cfg.max_iters, parameters=parameters)


def _narrow(model: dict[str, Any]) -> dict[str, Any]:
    """The same model, changed in place to fewer channels."""
    for part in dicts(model):
        for key, value in part.items():
            if key.endswith(('channels', 'channel')) and isinstance(value, int) and value >= 64:
                part[key] = value // NARROWER
    return model


def _detector(model: dict[str, Any], network: Network, sky: bool) -> dict[str, Any]:
    panoptic = _has_stuff(model)
    model = with_counts(_narrow(model), len(SKY_METAINFO['classes'] if sky else CLASSES))
    head = model.get('roi_head', {})
    if 'num_stages' in head:  # as many as are asked for, of those that it has
        stages = slice(head['num_stages'])
        head.update({key: head[key][stages] for key in ('stage_loss_weights', 'bbox_head')})
        model['train_cfg']['rcnn'] = model['train_cfg']['rcnn'][stages]
    network = network.only(_MAPS.get(model['type'], slice(None)))
    model.update(backbone=network.cfg)
    rescale = dict(type='mmsoft.RescalePyramid', in_channels=network.channels[0], rescales=network.rescales)
    pyramid = [rescale] * bool(network.rescales)
    if 'panoptic_head' in model:
        model['panoptic_head'].update(in_channels=list(network.channels))
        if panoptic:
            model['panoptic_head']['loss_cls']['class_weight'].insert(0, 1.0)
            for part in ('panoptic_head', 'panoptic_fusion_head'):
                model[part]['num_stuff_classes'] = 1
        return dict(model, neck=pyramid) if pyramid else model  # there is no other neck
    neck = dict(model['neck'], in_channels=list(network.channels), norm_cfg=dict(type='BN'))
    return dict(model, neck=[*pyramid, neck])


def _has_stuff(model: dict[str, Any]) -> bool:
    """Whether it is of panoptic segmentation."""
    return model.get('panoptic_head', {}).get('num_stuff_classes', 0) > 0


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


def _data(scope: str, method: Method, root: str, model: dict[str, Any]) -> dict[str, Any]:
    """Loaders of the training and the held-out images for a model, and how these are scored."""
    panoptic, with_masks = _has_stuff(model), 'mask_head' in model.get('roi_head', ()) or 'panoptic_head' in model
    masks = [dict(type='LoadAnnotations', with_bbox=True, with_mask=with_masks)]
    loading, packing, resize = dict(
        mmdet=(masks + [dict(type=BackgroundAsStuff.__name__)] * panoptic, 'PackDetInputs', True),
        mmseg=([dict(type='LoadAnnotations')], 'PackSegInputs', True),
        mmpretrain=([], 'PackInputs', False),
    )[scope]
    changes = dict(
        train=[dict(type='RandomFlip', prob=0.5)],
        val=[dict(type='Resize', scale_factor=1.0)] * resize,  # whose keys are expected
    )
    collate = dict(type='default_collate' if scope == 'mmpretrain' else 'pseudo_collate')
    loaders = {}
    for split in ('train', 'val'):
        dataset = dict(shapes_dataset(scope, root, split), test_mode=split == 'val')
        if method.sky:
            where = dict(ann_file=f'sky/{split}.json', data_prefix=dict(img=f'sky/{split}'))
            dataset.update(where, metainfo=SKY_METAINFO)
        dataset['pipeline'] = [dict(type='LoadImageFromFile'), *loading, *changes[split], dict(type=packing)]
        loaders[split] = dict(batch_size=method.batch_size, num_workers=0, collate_fn=collate, dataset=dataset)
    train, val = loaders.values()
    train['sampler'] = dict(type='InfiniteSampler', shuffle=True)
    val['sampler'] = dict(type='DefaultSampler', shuffle=False)
    evaluator = dict(type='Accuracy')
    if scope == 'mmdet':
        train['batch_sampler'] = dict(type='AspectRatioBatchSampler')
        ann_file = f'{root}/{val["dataset"]["ann_file"]}'
        evaluator = [dict(type='CocoMetric', ann_file=ann_file, metric=['bbox', 'segm'][: 1 + with_masks])]
        evaluator += [dict(type=PanopticQuality.__name__)] * panoptic
    elif scope == 'mmseg':
        val['batch_size'] = 1  # scenes of different shapes
        evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
    return dict(train_dataloader=train, test_dataloader=val, test_cfg=dict(), test_evaluator=evaluator)


def _training(method: Method, seed: int) -> dict[str, Any]:
    """Optimizer, schedule and hooks, the same for all but for the learning rates and the length."""
    iterations = method.iterations
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
