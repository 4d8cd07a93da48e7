"""GFL with sima_pvt.py's network and SOFT's depthwise convolution of the values, which it lacks, in attention's place.

python -m projects.trees control_pvt
"""

_base_ = 'sima_pvt.py'
model = dict(backbone=dict(attention=dict(_delete_=True, type='WithoutAttention')))
