"""ImageNet-1k at 224x224: what the recipes of SOFT and SimA share, which is timm's and DeiT's (batch of 8 x 128).

RandAugment (m9-mstd0.5-inc1), random erasing (0.25), AdamW without decay of norms and biases are in mmpretrain's base.
"""

_base_ = [
    'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py',
    'mmpretrain::_base_/schedules/imagenet_bs1024_adamw_swin.py',
    'mmpretrain::_base_/default_runtime.py',
    'reliable.py',
]
model = dict(
    type='ImageClassifier',
    backbone=dict(out_type='cls_token'),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
    ),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]),
)
train_dataloader = dict(batch_size=128)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'.cls_token': dict(decay_mult=0.0)}))
