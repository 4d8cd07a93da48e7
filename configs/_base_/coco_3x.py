"""COCO, 3x: 36 epochs with the shorter side between 480 and 800, with boxes alone or with masks."""

scales_3x = [(1333, side) for side in range(480, 801, 32)]
box_pipeline_3x = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomChoiceResize', scales=scales_3x, keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
with_masks = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
mask_pipeline_3x = [box_pipeline_3x[0], with_masks, *box_pipeline_3x[2:]]
param_scheduler_3x = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', begin=0, end=36, by_epoch=True, milestones=[27, 33], gamma=0.1),
]
