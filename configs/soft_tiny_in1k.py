"""SOFT-Norm-Tiny on ImageNet-1k: top-1 79.4 (arXiv 2207.03341, Table 3).

tools/dist_train.sh configs/soft_tiny_in1k.py 8
"""

_base_ = '_base_/soft_in1k.py'
model = dict(backbone=dict(arch='tiny'))
