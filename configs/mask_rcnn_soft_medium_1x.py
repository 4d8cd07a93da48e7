"""Mask R-CNN with SOFT-Norm-Medium on COCO, 1x: box AP 46.6, mask AP 42.0 (arXiv 2207.03341, Table 4).

tools/dist_train.sh configs/mask_rcnn_soft_medium_1x.py 8
"""

_base_ = 'mask_rcnn_soft_small_1x.py'
model = dict(backbone=dict(_delete_=True, **_base_.soft_medium), neck=dict(in_channels=_base_.soft_medium_channels))
