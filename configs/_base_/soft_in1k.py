"""SOFT and SOFT-Norm on ImageNet-1k: 300 epochs of AdamW from 1e-3 (larger sizes less) to 5e-5, 10 of them warm-up.

As fudan-zvg/SOFT runs it with timm 0.3.2: crops by either interpolation, branches dropped at a rate that grows to 0.1,
averaged weights evaluated, on the centre of 248x248.
"""

_base_ = 'in1k.py'
model = dict(backbone=dict(type='mmsoft.SOFT', attention_norm=True, drop_path_rate=0.1), head=dict(in_channels=512))
crop = dict(type='RandomResizedCrop', scale=224, backend='pillow')
either_crop = dict(
    type='RandomChoice', transforms=[[dict(interpolation='bilinear', **crop)], [dict(interpolation='bicubic', **crop)]]
)
train_dataloader = dict(dataset=dict(pipeline=[_base_.train_pipeline[0], either_crop, *_base_.train_pipeline[2:]]))
resize = dict(type='ResizeEdge', scale=248, edge='short', backend='pillow', interpolation='bicubic')
val_dataloader = dict(dataset=dict(pipeline=[_base_.test_pipeline[0], resize, *_base_.test_pipeline[2:]]))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=5e-5, by_epoch=True, begin=10),
]
custom_hooks = [*_base_.custom_hooks, dict(type='EMAHook', momentum=4e-5, update_buffers=True, priority='ABOVE_NORMAL')]
