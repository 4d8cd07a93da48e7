"""GFL with SimA-XCiT (patches of 8) on tree crowns, by the recipe of soft_norm.py.

python -m projects.trees sima
"""

_base_ = '_base_/trees.py'
arch = dict(embed_dims=128, num_heads=4, depth=6, patch_size=8, gamma=1.0, norm_tokens=True)
pyramid = dict(type='mmsoft.RescalePyramid', in_channels=128, rescales=(1, 0.5))
model = dict(
    backbone=dict(_delete_=True, type='mmsoft.SimAXCiT', arch=arch, out_indices=(2, 5)),
    neck=[pyramid, dict(_base_.model.neck, in_channels=[128, 128])],
)
