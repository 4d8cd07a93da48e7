"""UperNet with SOFT-Norm-Small on ADE20K, one epoch: mIoU 39.5 (arXiv 2207.03341, Table 10).

Warm-up, then a constant learning rate of the printed 6e-4, as the paper does not say how it falls.

    tools/dist_train.sh configs/upernet_soft_small_1epoch.py 8
"""

_base_ = 'upernet_soft_small_160k_lr6e-4.py'
train_cfg = dict(max_iters=1263, val_interval=1263)
param_scheduler = [dict(type='LinearLR', start_factor=1e-6, by_epoch=False, end=500)]
default_hooks = dict(checkpoint=dict(interval=1263))
