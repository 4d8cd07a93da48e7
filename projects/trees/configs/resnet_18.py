"""GFL with three stages of ResNet-18 on tree crowns, by the recipe of soft_norm.py.

python -m projects.trees resnet_18
"""

_base_ = '_base_/trees.py'
backbone = dict(type='ResNet', depth=18, stem_channels=44, base_channels=44, num_stages=3, out_indices=(1, 2))
more = dict(strides=(1, 2, 2), dilations=(1, 1, 1), norm_eval=False)
model = dict(backbone=dict(_delete_=True, **backbone, **more), neck=dict(in_channels=[88, 176]))
