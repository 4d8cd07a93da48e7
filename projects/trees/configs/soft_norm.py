"""GFL with three stages of SOFT-Norm on tree crowns: `make trees`.

python -m projects.trees soft_norm
"""

_base_ = '_base_/trees.py'
arch = dict(embed_dims=[32, 96, 160], num_heads=[1, 3, 5], depths=[1, 2, 2])
attention = dict(type='SOFTAttention', initial_gamma=0.3)  # from scratch, a kernel that begins wide
backbone = dict(type='mmsoft.SOFT', arch=arch, attention=attention, out_indices=(1, 2))
model = dict(backbone=dict(_delete_=True, **backbone), neck=dict(in_channels=[96, 160]))
# What position embeddings learn in crops is stretched over a whole photograph, where places mean nothing.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(pos_embed=dict(lr_mult=0.0))))
