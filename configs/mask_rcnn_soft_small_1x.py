"""Mask R-CNN with SOFT-Norm-Small on COCO, 1x: box AP 43.8, mask AP 40.1 (arXiv 2207.03341, Table 4).

tools/dist_train.sh configs/mask_rcnn_soft_small_1x.py 8
"""

_base_ = ['mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py', '_base_/soft.py']
model = dict(backbone=dict(_delete_=True, **_base_.soft_small), neck=dict(in_channels=_base_.soft_channels))
optim_wrapper = dict(_delete_=True, **_base_.coco_adamw)
