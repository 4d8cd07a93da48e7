"""A linear classifier of handwritten digits on the frozen class token of dino_xcit_digits.py.

python -m projects.dino xcit
"""

_base_ = 'linear_sima_digits.py'
backbone = dict(_delete_=True, **_base_.xcit, init_cfg=_base_.start)
model = dict(backbone=dict(backbone=backbone, class_tokens=['ca_layers.1']))
