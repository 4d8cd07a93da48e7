"""GFL with three stages of SOFT-Norm on tree crowns.

python -m projects.trees soft_norm
"""

_base_ = '_base_/trees.py'
arch = dict(embed_dims=[32, 96, 160], num_heads=[4, 12, 20], depths=[1, 2, 2])
# From scratch: heads of 8 channels, and a kernel that begins wide. The limit is for whole photographs: crops have 64 tokens.
attention = dict(type='StochasticSOFTAttention', drop_rate=0.75, initial_gamma=0.3, bottleneck_limit=100)
backbone = dict(type='mmsoft.SOFT', arch=arch, attention=attention, out_indices=(1, 2))
model = dict(backbone=dict(_delete_=True, **backbone), neck=dict(in_channels=[96, 160]))
# What position embeddings learn in crops is stretched over a whole photograph, where places mean nothing.
rates = dict(backbone=dict(lr_mult=0.5), pos_embed=dict(lr_mult=0.0))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=rates))
