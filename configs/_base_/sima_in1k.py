"""SimA on ImageNet-1k, by DeiT's recipe: AdamW 5e-4 x batch / 512, 5 epochs of warm-up, repeated augmentation.

Evaluated on the centre of 224x224, which is a crop ratio of 1.0.
"""

_base_ = 'in1k.py'
model = dict(backbone=dict(drop_path_rate=0.05))
train_dataloader = dict(sampler=dict(type='RepeatAugSampler', num_repeats=3))
resize = dict(type='ResizeEdge', scale=224, edge='short', backend='pillow', interpolation='bicubic')
val_dataloader = dict(dataset=dict(pipeline=[_base_.test_pipeline[0], resize, *_base_.test_pipeline[2:]]))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=1e-3), paramwise_cfg=dict(custom_keys={'.pos_embed': dict(decay_mult=0.0)}))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5),
]
