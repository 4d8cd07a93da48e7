"""What training on the synthetic shapes data set has in common for detection and segmentation."""

_base_ = 'reliable.py'
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='AdamW', lr=2e-3, weight_decay=0.05), clip_grad=dict(max_norm=5)
)
randomness = dict(seed=0)
