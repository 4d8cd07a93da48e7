"""Short ListOps, of 11 to 63 symbols, in batches of equal lengths: a minute on a CPU core.

python -m projects.long_range_arena soft_norm --seeds 0
"""

_base_ = 'listops.py'
steps = 1000
model = dict(length=64)
here = dict(num_workers=0, persistent_workers=False, batch_size=64, batch_sampler=dict(type='EqualLengths'))
short = dict(lengths=(10, 64))
train_dataloader = dict(**here, dataset=dict(**short, count=20000))
val_dataloader = dict(**here, dataset=dict(**short, count=2000))
test_dataloader = dict(**here, dataset=dict(**short, count=2000))
optim_wrapper = dict(optimizer=dict(lr=1e-3))
train_cfg = dict(max_iters=steps, val_interval=500)
param_scheduler = dict(eta_max=1e-3, total_steps=steps)
default_hooks = dict(checkpoint=dict(interval=500))
