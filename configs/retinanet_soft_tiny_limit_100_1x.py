"""RetinaNet with SOFT-Norm-Tiny and at most 100 bottleneck tokens on COCO, 1x; not in the paper.

tools/dist_train.sh configs/retinanet_soft_tiny_limit_100_1x.py 8
"""

_base_ = 'retinanet_soft_tiny_1x.py'
model = dict(backbone=dict(attention=dict(type='SOFTAttention', bottleneck_limit=100)))
