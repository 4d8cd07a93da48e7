"""Pathfinder of 32×32 pixels with SOFT; SOFT's paper has no figure for it.

python tools/train.py projects/long_range_arena/configs/pathfinder.py
"""

_base_ = 'listops.py'
steps = 62400
model = dict(num_classes=2, length=1024, vocabulary=256)
train_dataloader = dict(batch_size=256, dataset=dict(type='Pathfinder', count=160000))
val_dataloader = dict(batch_size=256, dataset=dict(type='Pathfinder', count=20000))
test_dataloader = dict(batch_size=256, dataset=dict(type='Pathfinder', count=20000))
train_cfg = dict(max_iters=steps, val_interval=312)
param_scheduler = dict(total_steps=steps, pct_start=0.005)
