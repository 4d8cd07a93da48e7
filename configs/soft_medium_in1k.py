"""SOFT-Norm-Medium on ImageNet-1k: top-1 83.1 (arXiv 2207.03341, Table 3).

tools/dist_train.sh configs/soft_medium_in1k.py 8
"""

_base_ = '_base_/soft_in1k.py'
model = dict(backbone=dict(arch='medium'))
optim_wrapper = dict(optimizer=dict(lr=4e-4))
