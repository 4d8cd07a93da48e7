"""Mask R-CNN with SimA-XCiT-S12/16 on COCO, 3x: box AP 44.8, mask AP 40.3 (arXiv 2206.08898, Table 3).

The recipe is XCiT's.

    tools/dist_train.sh configs/mask_rcnn_sima_xcit_small_12_p16_3x.py 8
"""

_base_ = ['mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_ms-crop-3x_coco.py', '_base_/sima.py', '_base_/coco_3x.py']
model = dict(
    backbone=dict(_delete_=True, **_base_.sima_xcit_small_12_p16),
    neck=[_base_.sima_pyramid_p16, dict(type='FPN', in_channels=[384] * 4, out_channels=256, num_outs=5)],
)
param_scheduler = _base_.param_scheduler_3x
