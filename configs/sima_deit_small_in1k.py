"""SimA in the architecture of DeiT-S on ImageNet-1k, 300 epochs: top-1 79.8 (arXiv 2206.08898, Table 1).

tools/dist_train.sh configs/sima_deit_small_in1k.py 8
"""

_base_ = '_base_/sima_in1k.py'
model = dict(backbone=dict(type='mmsoft.SimADeiT', arch='small'), head=dict(in_channels=384))
