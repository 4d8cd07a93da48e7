"""Cascade Mask R-CNN with SOFT-Norm-Small on COCO, 3x: box AP 48.3 (arXiv 2207.03341, Table 5).

tools/dist_train.sh configs/cascade_mask_rcnn_soft_small_3x.py 8
"""

_base_ = ['mmdet::cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py', '_base_/soft.py', '_base_/coco_3x.py']
model = dict(backbone=dict(_delete_=True, **_base_.soft_small), neck=dict(in_channels=_base_.soft_channels))
train_dataloader = dict(dataset=dict(pipeline=_base_.mask_pipeline_3x))
train_cfg = dict(max_epochs=36)
param_scheduler = _base_.param_scheduler_3x
optim_wrapper = dict(_delete_=True, **_base_.coco_adamw)
