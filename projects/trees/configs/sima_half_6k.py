"""GFL with sima_half.py's network, trained for twice as many iterations.

python -m projects.trees sima_half_6k
"""

_base_ = 'sima_half.py'
train_cfg = dict(max_iters=6000, val_interval=6000)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], T_max=6000)]
