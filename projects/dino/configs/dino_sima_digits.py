"""DINO with a small SimA-XCiT on handwritten digits: minutes on a CPU core.

python -m projects.dino sima
"""

_base_ = ['_base_/dino.py', '_base_/digits.py']
epochs = 4
# Crops keep most of a digit, so that what two views share is its shape.
turn = dict(
    type='Rotate', magnitude_range=(0.0, 10.0), magnitude_std='inf', prob=1.0, pad_val=0, interpolation='bilinear'
)
crop = dict(type='RandomResizedCrop', interpolation='bilinear')
views = [
    [turn, dict(crop, scale=32, crop_ratio_range=(0.7, 1.0))],
    [turn, dict(crop, scale=24, crop_ratio_range=(0.4, 0.7))],
]
pipeline = [dict(type='MultiView', num_views=[2, 2], transforms=views), dict(type='PackInputs')]
model = dict(
    backbone=_base_.sima,
    neck=dict(in_dims=64, out_dims=256, hidden=256, bottleneck=64, norm=True),
    head=dict(out_dims=256),
    data_preprocessor=dict(**_base_.normal),
)
train_dataloader = dict(
    **_base_.loader,
    batch_size=64,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='Digits', pipeline=pipeline, held_out=False),
)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-6, begin=1, end=epochs, convert_to_iter_based=True),
]
custom_hooks = [*_base_.custom_hooks[:-1], dict(type='DINOHook', momentum=0.98)]
train_cfg = dict(max_epochs=epochs)
test_cfg = dict(type='KNNTestLoop', bank=_base_.bank)
