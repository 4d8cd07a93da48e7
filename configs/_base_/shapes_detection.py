"""Detection on the synthetic shapes data set (mmsoft.datasets.shapes): loaders, evaluation, minutes on a CPU."""

_base_ = ['mmdet::_base_/default_runtime.py', 'shapes_training.py']
from mmsoft.datasets.shapes import METAINFO as metainfo

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale_factor=1.0),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='AspectRatioBatchSampler'),
    dataset=dict(
        type='CocoDataset',
        data_root='data/shapes/',
        ann_file='annotations/train.json',
        data_prefix=dict(img='images/training/'),
        metainfo=metainfo,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        data_root='data/shapes/',
        ann_file='annotations/val.json',
        data_prefix=dict(img='images/validation/'),
        metainfo=metainfo,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='CocoMetric', ann_file='data/shapes/annotations/val.json', metric='bbox', classwise=True)
test_evaluator = val_evaluator

max_epochs = 9
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=3)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.05, by_epoch=False, end=100),
    dict(type='CosineAnnealingLR', T_max=max_epochs, eta_min=1e-5, convert_to_iter_based=True),
]
default_hooks = dict(checkpoint=dict(max_keep_ckpts=2, save_best='coco/bbox_mAP'), logger=dict(interval=20))
