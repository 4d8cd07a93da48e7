"""Mask R-CNN with SOFT-Norm-Tiny on COCO, 1x: box AP 41.2, mask AP 38.2 (arXiv 2207.03341, Table 4).

tools/dist_train.sh configs/mask_rcnn_soft_tiny_1x.py 8
"""

_base_ = 'mask_rcnn_soft_small_1x.py'
model = dict(backbone=dict(_delete_=True, **_base_.soft_tiny))
