"""The network of dino_xcit_digits.py, trained with labels.

python -m projects.dino xcit
"""

_base_ = 'supervised_sima_digits.py'
model = dict(backbone=dict(_delete_=True, **_base_.xcit))
