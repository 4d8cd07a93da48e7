"""GFL with sima_half_6k.py's network, of which three of four images do without attention in training.

python -m projects.trees sima_rare_6k
"""

_base_ = 'sima_half_6k.py'
model = dict(backbone=dict(attention=dict(drop_rate=0.75)))
