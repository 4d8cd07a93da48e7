"""SOFT-Norm-Large on ImageNet-1k, 300 epochs: top-1 83.3, 64M parameters (IJCV 2024, Table 2).

    tools/dist_train.sh configs/soft_large_in1k.py 8
"""
_base_ = '_base_/soft_in1k.py'
model = dict(backbone=dict(arch='large'))
