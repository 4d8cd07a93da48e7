"""RetinaNet with SOFT-Small on COCO, one epoch: box AP 2.3 (arXiv 2207.03341, Table 10).

tools/dist_train.sh configs/retinanet_soft_small_plain_1epoch.py 8
"""

_base_ = 'retinanet_soft_small_1epoch.py'
model = dict(backbone=dict(attention_norm=False, init_cfg=dict(checkpoint='checkpoints/soft_small.pth')))
