"""SOFT-Norm backbones for dense prediction, with their authors' ImageNet files, and COCO's optimizer."""

_base_ = 'reliable.py'
soft_tiny = dict(
    type='mmsoft.SOFT',
    arch='tiny',
    attention_norm=True,
    init_cfg=dict(type='Pretrained', checkpoint='checkpoints/soft_norm_tiny.pth'),
)
soft_small = dict(
    type='mmsoft.SOFT',
    arch='small',
    attention_norm=True,
    init_cfg=dict(type='Pretrained', checkpoint='checkpoints/soft_norm_small.pth'),
)
soft_medium = dict(
    type='mmsoft.SOFT',
    arch='medium',
    attention_norm=True,
    init_cfg=dict(type='Pretrained', checkpoint='checkpoints/soft_norm_medium.pth'),
)
soft_large = dict(
    type='mmsoft.SOFT',
    arch='large',
    attention_norm=True,
    init_cfg=dict(type='Pretrained', checkpoint='checkpoints/soft_norm_large.pth'),
)
soft_channels = [64, 128, 320, 512]
soft_medium_channels = [64, 128, 288, 512]
coco_adamw = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.01))
