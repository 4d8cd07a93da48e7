"""GFL with sima_pvt.py's network, of which half of the images do without attention in training.

python -m projects.trees sima_half
"""

_base_ = 'sima_pvt.py'
model = dict(backbone=dict(attention=dict(type='StochasticSimAAttention', drop_rate=0.5)))
