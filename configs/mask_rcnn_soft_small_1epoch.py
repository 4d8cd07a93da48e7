"""Mask R-CNN with SOFT-Norm-Small on COCO, one epoch: box AP 30.3 (arXiv 2207.03341, Table 10).

Warm-up, then a constant learning rate, as the paper does not say.

    tools/dist_train.sh configs/mask_rcnn_soft_small_1epoch.py 8
"""

_base_ = 'mask_rcnn_soft_small_1x.py'
train_cfg = dict(max_epochs=1)
param_scheduler = [dict(type='LinearLR', start_factor=0.001, by_epoch=False, end=500)]
