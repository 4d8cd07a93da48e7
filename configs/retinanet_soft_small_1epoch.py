"""RetinaNet with SOFT-Norm-Small on COCO, one epoch: box AP 28.5 (arXiv 2207.03341, Table 10).

Warm-up, then a constant learning rate, as the paper does not say.

    tools/dist_train.sh configs/retinanet_soft_small_1epoch.py 8
"""

_base_ = 'retinanet_soft_small_1x.py'
train_cfg = dict(max_epochs=1)
param_scheduler = [dict(type='LinearLR', start_factor=0.001, by_epoch=False, end=500)]
