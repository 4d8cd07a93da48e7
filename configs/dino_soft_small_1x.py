"""DINO (4 scales) with SOFT-Norm-Small on COCO, 12 epochs, by DINO's recipe. The paper does not train it.

tools/dist_train.sh configs/dino_soft_small_1x.py 8
"""

_base_ = ['mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py', '_base_/soft.py']
model = dict(
    backbone=dict(_delete_=True, **_base_.soft_small, out_indices=(1, 2, 3)),
    neck=dict(in_channels=_base_.soft_channels[1:]),
)
optim_wrapper = dict(paramwise_cfg=dict(norm_decay_mult=0.0))
