"""RetinaNet with SOFT-Norm-Large on COCO, 1x: box AP 45.3 (arXiv 2207.03341, Table 4).

tools/dist_train.sh configs/retinanet_soft_large_1x.py 8
"""

_base_ = 'retinanet_soft_small_1x.py'
model = dict(backbone=dict(_delete_=True, **_base_.soft_large))
