"""RetinaNet with three stages of SOFT-Norm, on scenes whose sky alone tells day from night: `make train`.

tools/train.py configs/retinanet_soft_nano_sky_shapes.py
"""

_base_ = 'retinanet_soft_nano_shapes.py'
from mmsoft.datasets.shapes import SKY_METAINFO as metainfo

train_dataloader = dict(dataset=dict(ann_file='sky/train.json', data_prefix=dict(img='sky/train/'), metainfo=metainfo))
val_dataloader = dict(dataset=dict(ann_file='sky/val.json', data_prefix=dict(img='sky/val/'), metainfo=metainfo))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file='data/shapes/sky/val.json')
test_evaluator = val_evaluator
# Small kernels and no fourth stage: convolutions shall not reach the sky, attention does.
arch = dict(embed_dims=[32, 96, 160], num_heads=[1, 3, 5], depths=[1, 2, 2], kernel_sizes=[3, 3, 3])
backbone = dict(arch=dict(_delete_=True, **arch), out_indices=(0, 1, 2))
# The statistics of a GroupNorm in the head would tell every place of the sky; those of BatchNorm do not.
head = dict(type='RetinaSepBNHead', num_ins=4, num_classes=12, norm_cfg=dict(_delete_=True, type='BN'))
model = dict(backbone=backbone, neck=dict(in_channels=arch['embed_dims']), bbox_head=head)
train_cfg = dict(max_epochs=6, val_interval=2)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], T_max=6)]
