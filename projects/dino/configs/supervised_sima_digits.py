"""The network of dino_sima_digits.py, trained with labels.

python -m projects.dino sima
"""

_base_ = ['_base_/digits.py', 'mmpretrain::_base_/default_runtime.py', '../../../configs/_base_/reliable.py']
custom_imports = dict(imports=['mmsoft.checkpoint.safe_loading', 'projects.dino'])
epochs = 4
crop = dict(type='RandomResizedCrop', scale=32, crop_ratio_range=(0.4, 1.0), interpolation='bicubic')
model = dict(
    type='ImageClassifier', backbone=_base_.sima, head=dict(type='LinearClsHead', num_classes=10, in_channels=64)
)
data_preprocessor = dict(num_classes=10, to_rgb=False, **_base_.normal)
train_dataloader = dict(
    **_base_.loader,
    batch_size=64,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='Digits', pipeline=[crop, dict(type='PackInputs')], held_out=False),
)
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-6, begin=1, end=epochs, convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=epochs)
test_cfg = dict()
test_evaluator = dict(type='Accuracy')
default_hooks = dict(checkpoint=dict(max_keep_ckpts=1))
