"""GFL with soft_norm.py's network without its attention: what attention is worth to a network trained without it.

python -m projects.trees control
"""

_base_ = 'soft_norm.py'
model = dict(backbone=dict(attention=dict(_delete_=True, type='WithoutAttention')))
