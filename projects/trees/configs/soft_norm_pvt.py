"""GFL with soft_norm_mix.py's network and PVTv2's patch embeddings: `make trees`.

python -m projects.trees soft_norm_pvt
"""

_base_ = 'soft_norm_mix.py'
model = dict(backbone=dict(embedding='pvt_v2'))
