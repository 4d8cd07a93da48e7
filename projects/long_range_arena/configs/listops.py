"""ListOps of 501 to 1,999 symbols with SOFT (arXiv 2110.11945, Table 6: 37.40).

python tools/train.py projects/long_range_arena/configs/listops.py
"""

_base_ = '_base_/training.py'
steps = 5000
model = dict(num_classes=10, length=2048, vocabulary=32)
loader = dict(batch_size=32, num_workers=2, persistent_workers=True, collate_fn=dict(type='pseudo_collate'))
evaluated = dict(sampler=dict(type='DefaultSampler', shuffle=False))
train_dataloader = dict(
    **loader, sampler=dict(type='InfiniteSampler'), dataset=dict(type='ListOps', split='train', count=96000)
)
val_dataloader = dict(**loader, **evaluated, dataset=dict(type='ListOps', split='val', count=2000))
test_dataloader = dict(**loader, **evaluated, dataset=dict(type='ListOps', split='test', count=2000))
train_cfg = dict(type='IterBasedTrainLoop', max_iters=steps, val_interval=500)
param_scheduler = dict(
    type='OneCycleLR', eta_max=1e-4, total_steps=steps, pct_start=0.2, anneal_strategy='linear', by_epoch=False
)
