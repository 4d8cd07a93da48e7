"""SOFT-Huge, without attention normalisation, on ImageNet-1k, 300 epochs: top-1 83.3, 87M parameters (NeurIPS 2021).

    tools/dist_train.sh configs/soft_huge_plain_in1k.py 8
"""
_base_ = 'soft_huge_in1k.py'
model = dict(backbone=dict(attention_norm=False))
