"""Mask R-CNN with SOFT-Norm-Large on COCO, 1x: box AP 47.0, mask AP 42.2 (arXiv 2207.03341, Table 4).

tools/dist_train.sh configs/mask_rcnn_soft_large_1x.py 8
"""

_base_ = 'mask_rcnn_soft_small_1x.py'
model = dict(backbone=dict(_delete_=True, **_base_.soft_large))
