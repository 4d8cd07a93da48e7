"""GFL on aerial photographs of tree crowns: trained on crops of tiles, tested on whole photographs."""

_base_ = ['mmdet::gfl/gfl_r50_fpn_1x_coco.py', '../../../../configs/_base_/reliable.py']
modules = ['projects.control', 'projects.trees.attention', 'projects.trees.fusion', 'mmpretrain.datasets.transforms']
custom_imports = dict(imports=[*_base_.custom_imports.imports, *modules])
metainfo = dict(classes=('tree',), palette=[(255, 200, 0)])
# Crowns are 15 to 75 pixels wide, and hardly overlap.
anchors = dict(octave_base_scale=4, strides=[8, 16, 32])
# GroupNorm would see crops in training and whole photographs in tests: its statistics are of all pixels.
norm = dict(type='mmpretrain.LN2d')
head = dict(num_classes=1, in_channels=64, feat_channels=64, stacked_convs=2, norm_cfg=norm, anchor_generator=anchors)
model = dict(
    neck=dict(out_channels=64, start_level=0, num_outs=3, norm_cfg=dict(type='BN')),
    bbox_head=head,
    test_cfg=dict(nms_pre=3000, score_thr=0.02, nms=dict(iou_threshold=0.35), max_per_img=1000),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomResize', scale=(400, 400), ratio_range=(0.8, 1.6), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(256, 256), allow_negative_crop=True),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(8, 8), keep_empty=False),  # slivers at the crop's sides
    dict(type='RandomFlip', prob=[0.25, 0.25, 0.25], direction=['horizontal', 'vertical', 'diagonal']),
    # Photographs are not equally sharp: 0.7 pixels make the training photograph look like the validation photograph.
    dict(type='mmpretrain.GaussianBlur', magnitude_range=(0.0, 1.5), magnitude_std='inf', prob=0.7),
    dict(type='mmpretrain.ColorJitter', brightness=0.3, contrast=0.3, saturation=0.4, hue=0.05, backend='cv2'),
    dict(type='PackDetInputs'),
]
meta_keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale_factor=1.25),  # about the mean of the scales in training
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=meta_keys),
]
# Twelve views: single boxes are loose, their means are not.
views = [
    [dict(type='Resize', scale_factor=scale) for scale in (1.0, 1.25, 1.5)],
    [
        *(
            dict(type='RandomFlip', prob=1.0, direction=direction)
            for direction in ('horizontal', 'vertical', 'diagonal')
        ),
        dict(type='RandomFlip', prob=0.0),
    ],
    [dict(type='LoadAnnotations', with_bbox=True)],
    [dict(type='PackDetInputs', meta_keys=(*meta_keys, 'flip', 'flip_direction'))],
]
tta_pipeline = [dict(type='LoadImageFromFile'), dict(type='TestTimeAug', transforms=views)]
tta_model = dict(type='mmsoft.FusedTTAModel')
tiles = dict(ann_file='train.json', data_prefix=dict(img='tiles/'), filter_cfg=dict(filter_empty_gt=False))
photographs = dict(ann_file='validation.json', data_prefix=dict(img='photographs/'))
train_dataloader = dict(
    batch_size=4,
    num_workers=0,  # on two cores another process would take time from training
    persistent_workers=False,
    batch_sampler=None,
    sampler=dict(_delete_=True, type='InfiniteSampler', shuffle=True),
    dataset=dict(
        _delete_=True, type='CocoDataset', data_root='data/trees/', metainfo=metainfo, pipeline=train_pipeline, **tiles
    ),
)
val_dataloader = dict(
    num_workers=1, dataset=dict(data_root='data/trees/', metainfo=metainfo, pipeline=test_pipeline, **photographs)
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file='data/trees/validation.json')
test_evaluator = val_evaluator

max_iters = 3000
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=5),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.05, by_epoch=False, end=100),
    dict(type='CosineAnnealingLR', T_max=max_iters, eta_min_ratio=0.01, by_epoch=False),
]
custom_hooks = [*_base_.custom_hooks, dict(type='EMAHook', momentum=0.01, update_buffers=True)]
default_hooks = dict(
    logger=dict(interval=20, log_metric_by_epoch=False), checkpoint=dict(by_epoch=False, interval=250, max_keep_ckpts=1)
)
log_processor = dict(by_epoch=False, window_size=20)
randomness = dict(seed=0)
