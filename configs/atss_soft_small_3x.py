"""ATSS with SOFT-Norm-Small on COCO, 3x: box AP 46.7 (arXiv 2207.03341, Table 5).

tools/dist_train.sh configs/atss_soft_small_3x.py 8
"""

_base_ = ['mmdet::atss/atss_r50_fpn_1x_coco.py', '_base_/soft.py', '_base_/coco_3x.py']
model = dict(backbone=dict(_delete_=True, **_base_.soft_small), neck=dict(in_channels=_base_.soft_channels))
train_dataloader = dict(dataset=dict(pipeline=_base_.box_pipeline_3x))
train_cfg = dict(max_epochs=36)
param_scheduler = _base_.param_scheduler_3x
optim_wrapper = dict(_delete_=True, **_base_.coco_adamw)
