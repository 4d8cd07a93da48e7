"""GFL with three stages of PVTv2 on tree crowns, by the recipe of soft_norm.py.

python -m projects.trees pvt_v2
"""

_base_ = '_base_/trees.py'
# It always has four stages; the last one, which is not used, is small.
sizes = dict(embed_dims=28, num_layers=[1, 2, 2, 1], num_heads=[1, 3, 5, 1], mlp_ratios=[4] * 4, drop_path_rate=0.0)
backbone = dict(type='PyramidVisionTransformerV2', out_indices=(1, 2), **sizes)
model = dict(backbone=dict(_delete_=True, **backbone), neck=dict(in_channels=[84, 140]))
