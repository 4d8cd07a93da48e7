"""GFL with control_pvt.py's network, trained for twice as many iterations.

python -m projects.trees control_pvt_6k
"""

_base_ = 'control_pvt.py'
train_cfg = dict(max_iters=6000, val_interval=6000)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], T_max=6000)]
