"""GFL with sima_pvt.py's network without its attention: what attention is worth to a network trained without it.

python -m projects.trees control_pvt
"""

_base_ = 'sima_pvt.py'
model = dict(backbone=dict(attention=dict(_delete_=True, type='WithoutAttention')))
