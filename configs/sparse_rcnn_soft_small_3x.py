"""Sparse R-CNN (300 proposals) with SOFT-Norm-Small on COCO, 3x: box AP 47.1 (arXiv 2207.03341, Table 5).

tools/dist_train.sh configs/sparse_rcnn_soft_small_3x.py 8
"""

_base_ = [
    'mmdet::sparse_rcnn/sparse-rcnn_r50_fpn_300-proposals_crop-ms-480-800-3x_coco.py',
    '_base_/soft.py',
    '_base_/coco_3x.py',
]
model = dict(backbone=dict(_delete_=True, **_base_.soft_small), neck=dict(in_channels=_base_.soft_channels))
train_dataloader = dict(dataset=dict(pipeline=_base_.box_pipeline_3x))
optim_wrapper = dict(optimizer=dict(_delete_=True, **_base_.coco_adamw.optimizer))
