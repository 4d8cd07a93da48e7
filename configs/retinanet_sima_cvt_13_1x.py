"""RetinaNet with SimA-CvT-13 on COCO, 1x, by the recipe of RetinaNet with SOFT. The paper does not train it.

tools/dist_train.sh configs/retinanet_sima_cvt_13_1x.py 8
"""

_base_ = ['mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', '_base_/soft.py']
model = dict(backbone=dict(_delete_=True, type='mmsoft.SimACvT', arch='13'), neck=dict(in_channels=[64, 192, 384]))
optim_wrapper = dict(_delete_=True, **_base_.coco_adamw)
