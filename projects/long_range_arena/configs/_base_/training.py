"""Training of Long Range Arena's tasks, as in Nyströmformer's code (see ../../README.md)."""

_base_ = ['../../../../configs/_base_/reliable.py', 'mmpretrain::_base_/default_runtime.py']
custom_imports = dict(imports=['mmsoft.checkpoint.safe_loading', 'projects.long_range_arena'])
# model = dict(attention=…) chooses another attention.
model = dict(
    type='SequenceClassifier', attention=dict(type='SOFTAttention', sampling='avg_pool', initial_gamma=0.3), ratio=4
)
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-4, eps=1e-6, weight_decay=0.0))
val_cfg = dict()
test_cfg = dict()
val_evaluator = dict(type='Accuracy')
test_evaluator = val_evaluator
default_hooks = dict(
    logger=dict(interval=50), checkpoint=dict(by_epoch=False, interval=500, max_keep_ckpts=1, save_best='accuracy/top1')
)
log_processor = dict(by_epoch=False)
