"""Mask R-CNN with SimA-XCiT-S12/8 on COCO, 3x. The paper has patch 16 only, and no ImageNet weights for this one.

tools/dist_train.sh configs/mask_rcnn_sima_xcit_small_12_p8_3x.py 8
"""

_base_ = 'mask_rcnn_sima_xcit_small_12_p16_3x.py'
model = dict(
    backbone=dict(arch='small-12-p8', init_cfg=None),
    neck=[dict(_base_.sima_pyramid_p16, rescales=(2, 1, 0.5, 0.25)), _base_.model.neck[1]],
)
