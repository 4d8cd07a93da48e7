"""Mask R-CNN with SimA-XCiT-S12/16 on COCO, 100 epochs of large-scale jitter at 1024x1024, by ViTDet's recipe.

Learning rates decay from the heads to the stem. The paper does not train it.

    tools/dist_train.sh configs/mask_rcnn_sima_xcit_small_12_p16_lsj_100e.py 32
"""

_base_ = ['mmdet::_base_/models/mask-rcnn_r50_fpn.py', 'mmdet::common/lsj-100e_coco-instance.py', '_base_/sima.py']
model = dict(
    backbone=dict(_delete_=True, **dict(_base_.sima_xcit_small_12_p16, drop_path_rate=0.1)),
    neck=[_base_.sima_pyramid_p16, dict(type='FPN', in_channels=[384] * 4, out_channels=256, num_outs=5)],
)
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='AdamW', lr=1e-4, weight_decay=0.1),
    constructor='mmsoft.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=0.7, norm_decay_mult=0.0, bias_decay_mult=0.0),
)
param_scheduler = [dict(type='LinearLR', start_factor=0.001, by_epoch=False, end=250), _base_.param_scheduler[1]]
