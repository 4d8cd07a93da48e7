"""DINO (4 scales) with SimA-XCiT-S12/16 on COCO, 12 epochs, by DINO's recipe. The paper does not train it.

tools/dist_train.sh configs/dino_sima_xcit_small_12_p16_1x.py 8
"""

_base_ = ['mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py', '_base_/sima.py']
model = dict(
    backbone=dict(_delete_=True, **_base_.sima_xcit_small_12_p16, out_indices=(5, 7, 11)),
    neck=[dict(_base_.sima_pyramid_p16, rescales=(2, 1, 0.5)), dict(_base_.model.neck, in_channels=[384] * 3)],
)
optim_wrapper = dict(paramwise_cfg=dict(norm_decay_mult=0.0))
