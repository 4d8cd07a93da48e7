"""Mask R-CNN with SOFT-Norm-Small and at most 100 bottleneck tokens on COCO, 1x; not in the paper.

tools/dist_train.sh configs/mask_rcnn_soft_small_limit_100_1x.py 8
"""

_base_ = 'mask_rcnn_soft_small_1x.py'
model = dict(backbone=dict(attention=dict(type='SOFTAttention', bottleneck_limit=100)))
