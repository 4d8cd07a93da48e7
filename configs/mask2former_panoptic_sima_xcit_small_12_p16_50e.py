"""Mask2Former for panoptic segmentation with SimA-XCiT-S12/16 on COCO, 50 epochs, by its recipe; not in the paper.

tools/dist_train.sh configs/mask2former_panoptic_sima_xcit_small_12_p16_50e.py 8
"""

_base_ = ['mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py', '_base_/sima.py']
model = dict(
    backbone=dict(_delete_=True, **_base_.sima_xcit_small_12_p16),
    neck=_base_.sima_pyramid_p16,
    panoptic_head=dict(in_channels=[384] * 4),
)
