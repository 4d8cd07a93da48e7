"""Training by DINO, as in the authors' main_dino.py with SimA's settings (2206.08898, Sec. 4.4): batch of 256, 100 epochs."""

_base_ = ['../../../../configs/_base_/reliable.py', 'mmpretrain::_base_/default_runtime.py']
custom_imports = dict(imports=['mmsoft.checkpoint.safe_loading', 'projects.dino'])
model = dict(
    type='DINO',
    neck=dict(type='Projection', in_dims=384),
    head=dict(type='DINOLoss'),
    data_preprocessor=dict(
        type='SelfSupDataPreprocessor', mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True
    ),
)
custom_hooks = [*_base_.custom_hooks, dict(type='DINOHook')]
sync_bn = 'torch'
optim_wrapper = dict(
    type='ClipEachOptimWrapper',  # on GPUs, ClipEachAmpOptimWrapper computes in half precision
    optimizer=dict(type='AdamW', lr=2.5e-4, weight_decay=0.04),
    paramwise_cfg=dict(bias_decay_mult=0.0, norm_decay_mult=0.0, flat_decay_mult=0.0),
    clip_grad=dict(max_norm=3.0),
)
auto_scale_lr = dict(base_batch_size=256)
warmup = 10
epochs = 100
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, end=warmup, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-6, begin=warmup, end=epochs, convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=epochs)
default_hooks = dict(checkpoint=dict(max_keep_ckpts=1))
test_evaluator = []
