"""A linear classifier on frozen features (2206.08898, Sec. 4.4): SGD, 100 epochs, batch of 1024, crops and flips."""

_base_ = [
    'mmpretrain::_base_/datasets/imagenet_bs64_pil_resize.py',
    'mmpretrain::_base_/default_runtime.py',
    '../../../../configs/_base_/reliable.py',
]
custom_imports = dict(imports=['mmsoft.checkpoint.safe_loading', 'projects.dino'])
model = dict(
    type='ImageClassifier',
    backbone=dict(type='Probe'),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        loss=dict(type='CrossEntropyLoss'),
        init_cfg=dict(type='Normal', layer='Linear', std=0.01),
    ),
)
train_dataloader = dict(batch_size=128)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.001, momentum=0.9, weight_decay=0.0))
auto_scale_lr = dict(base_batch_size=1024)
epochs = 100
param_scheduler = dict(type='CosineAnnealingLR', end=epochs, convert_to_iter_based=True)
train_cfg = dict(by_epoch=True, max_epochs=epochs)
val_cfg = dict()
test_cfg = dict()
