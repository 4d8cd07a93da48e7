"""Short ListOps, of 11 to 63 symbols: minutes on a CPU.

python tools/train.py projects/long_range_arena/configs/listops_small.py
"""

_base_ = 'listops.py'
steps = 2000
model = dict(length=64)
short = dict(lengths=(10, 64))
train_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(**short, count=20000))
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(**short, count=1000))
test_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(**short, count=1000))
optim_wrapper = dict(optimizer=dict(lr=1e-3))
train_cfg = dict(max_iters=steps)
param_scheduler = dict(eta_max=1e-3, total_steps=steps)
