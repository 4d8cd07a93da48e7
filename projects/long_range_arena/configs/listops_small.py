"""Short ListOps, of 7 to 19 symbols, in batches of equal lengths: a minute or two on a CPU core.

python -m projects.long_range_arena soft_norm --seeds 0
"""

_base_ = 'listops.py'
steps = 4000
model = dict(length=32)
here = dict(num_workers=0, persistent_workers=False)
short = dict(lengths=(6, 20), depth=3)
evaluated = dict(**here, dataset=short, batch_size=200, batch_sampler=dict(type='EqualLengths'))
train_dataloader = dict(**here, dataset=dict(**short, count=100000, together=64), batch_size=1)
val_dataloader = evaluated
test_dataloader = evaluated
optim_wrapper = dict(optimizer=dict(lr=1e-3))
train_cfg = dict(max_iters=steps)
param_scheduler = dict(eta_max=1e-3, total_steps=steps)
default_hooks = dict(logger=dict(interval=200))
