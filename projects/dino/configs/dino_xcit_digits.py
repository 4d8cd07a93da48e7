"""DINO with a small XCiT on handwritten digits: minutes on a CPU core.

python -m projects.dino xcit
"""

_base_ = 'dino_sima_digits.py'
model = dict(backbone=dict(_delete_=True, **_base_.xcit))
