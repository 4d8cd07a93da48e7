"""SimA on ImageNet-1k: 300 epochs, AdamW 5e-4, stochastic depth 0.05, RandAugment."""
_base_ = 'in1k.py'
model = dict(backbone=dict(drop_path_rate=0.05))
optim_wrapper = dict(optimizer=dict(lr=5e-4))
