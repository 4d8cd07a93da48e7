"""Mask2Former for panoptic segmentation with SOFT-Norm-Small on COCO, 50 epochs, by its recipe; not in the paper.

tools/dist_train.sh configs/mask2former_panoptic_soft_small_50e.py 8
"""

_base_ = ['mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py', '_base_/soft.py']
model = dict(backbone=dict(_delete_=True, **_base_.soft_small), panoptic_head=dict(in_channels=_base_.soft_channels))
