"""SOFT-Norm backbones for dense prediction, with their authors' ImageNet files, and COCO's optimizer."""

_base_ = 'reliable.py'
soft_tiny, soft_small, soft_medium, soft_large = [
    dict(
        type='mmsoft.SOFT',
        arch=arch,
        attention_norm=True,
        init_cfg=dict(type='Pretrained', checkpoint=f'checkpoints/soft_norm_{arch}.pth'),
    )
    for arch in ('tiny', 'small', 'medium', 'large')
]
soft_channels = [64, 128, 320, 512]
soft_medium_channels = [64, 128, 288, 512]
coco_adamw = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.01))
