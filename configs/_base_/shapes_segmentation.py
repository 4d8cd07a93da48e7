"""Segmentation of the synthetic shapes data set (mmsoft.datasets.shapes): loaders, evaluation, minutes on a CPU."""

_base_ = 'shapes_training.py'
from mmsoft.datasets.shapes import SEMANTIC_METAINFO as metainfo

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale_factor=1.0),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        data_root='data/shapes/',
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        metainfo=metainfo,
        reduce_zero_label=True,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root='data/shapes/',
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        metainfo=metainfo,
        reduce_zero_label=True,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

max_iters = 2200
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters // 2)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.05, by_epoch=False, end=100),
    dict(type='CosineAnnealingLR', T_max=max_iters, eta_min=1e-5, by_epoch=False),
]
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=20, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=100, max_keep_ckpts=2, save_best='mIoU'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'),
)
