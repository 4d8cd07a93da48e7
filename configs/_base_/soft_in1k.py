"""SOFT and SOFT-Norm on ImageNet-1k: 300 epochs, AdamW 1e-3 down to 5e-5, 10 of them warm-up."""
_base_ = 'in1k.py'
model = dict(backbone=dict(type='mmsoft.SOFT', attention_norm=True), head=dict(in_channels=512))
train_dataloader = dict(
    dataset=dict(pipeline=[
        dict(type='LoadImageFromFile'),
        dict(type='RandomResizedCrop', scale=224, backend='pillow', interpolation='bicubic'),
        dict(type='RandomFlip', prob=0.5, direction='horizontal'),
        dict(type='PackInputs'),
    ]))
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=5e-5, by_epoch=True, begin=10, end=300)
]
