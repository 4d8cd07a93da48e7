"""GFL with SimA-XCiT (patches of 8) on tree crowns, by the recipe of soft_norm.py.

python -m projects.trees sima
"""

_base_ = '_base_/trees.py'
arch = dict(embed_dims=128, num_heads=4, depth=6, patch_size=8, gamma=1.0, norm_tokens=True)
# SimA's output falls as 1/n with the n tokens that attend: 1,024 in a crop, up to 46,000 in a whole photograph.
attention = dict(type='SimAAttention', reference_tokens=1024)
pyramid = dict(type='mmsoft.RescalePyramid', in_channels=128, rescales=(1, 0.5))
model = dict(
    backbone=dict(_delete_=True, type='mmsoft.SimAXCiT', arch=arch, attention=attention, out_indices=(5,)),
    neck=[pyramid, dict(_base_.model.neck, in_channels=[128, 128])],
)
