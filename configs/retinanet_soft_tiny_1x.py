"""RetinaNet with SOFT-Norm-Tiny on COCO, 1x: box AP 40.0 (arXiv 2207.03341, Table 4).

tools/dist_train.sh configs/retinanet_soft_tiny_1x.py 8
"""

_base_ = 'retinanet_soft_small_1x.py'
model = dict(backbone=dict(_delete_=True, **_base_.soft_tiny))
