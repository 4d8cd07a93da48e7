"""SOFT-Norm-Small on ImageNet-1k, 300 epochs: top-1 82.4, 24M parameters (IJCV 2024, Table 2).

    tools/dist_train.sh configs/soft_small_in1k.py 8
"""
_base_ = '_base_/soft_in1k.py'
model = dict(backbone=dict(arch='small'))
