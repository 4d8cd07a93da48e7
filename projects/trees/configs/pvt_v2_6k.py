"""GFL with pvt_v2.py's network, trained for twice as many iterations.

python -m projects.trees pvt_v2_6k
"""

_base_ = 'pvt_v2.py'
train_cfg = dict(max_iters=6000, val_interval=6000)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], T_max=6000)]
