"""SimA in DeiT-S with ReLU, so without any exp, on ImageNet-1k: top-1 79.6 (arXiv 2206.08898, Table 1).

tools/dist_train.sh configs/sima_deit_small_relu_in1k.py 8
"""

_base_ = 'sima_deit_small_in1k.py'
model = dict(backbone=dict(act_cfg=dict(type='ReLU')))
