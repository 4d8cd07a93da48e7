"""GFL with soft_norm_pvt.py's network and SimA's attention.

python -m projects.trees sima_pvt
"""

_base_ = 'soft_norm_pvt.py'
# SimA's output falls as 1/n with the n tokens that attend: 256 to 4,096 in a crop.
attention = dict(_delete_=True, type='SimAAttention', reference_tokens=256)
model = dict(backbone=dict(arch=dict(num_heads=[1, 3, 5]), attention=attention))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=1.0))))
