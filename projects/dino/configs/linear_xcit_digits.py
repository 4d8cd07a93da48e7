"""A linear classifier of handwritten digits on the frozen class token of dino_xcit_digits.py.

python -m projects.dino xcit
"""

_base_ = 'linear_sima_digits.py'
backbone = dict(dict(_base_.xcit, init_cfg=_base_.start), _delete_=True)
model = dict(backbone=dict(backbone=backbone, class_tokens=['ca_layers.1']))
