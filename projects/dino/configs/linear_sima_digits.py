"""A linear classifier of handwritten digits on the frozen class token of dino_sima_digits.py.

python -m projects.dino sima
"""

_base_ = 'supervised_sima_digits.py'
epochs = 3
start = dict(type='Pretrained', checkpoint='work_dirs/dino/dino_sima_0/epoch_4.pth', prefix='teacher.backbone.')
backbone = dict(_base_.sima, init_cfg=start)
model = dict(backbone=dict(_delete_=True, type='Probe', backbone=backbone, class_tokens=['cls_blocks.1']))
train_dataloader = dict(dataset=dict(pipeline=_base_.pipeline))
optim_wrapper = dict(optimizer=dict(lr=1e-1, weight_decay=0.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-6, begin=1, end=epochs, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=epochs)
