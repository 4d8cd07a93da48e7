"""SOFT-Small, without attention normalisation, on ImageNet-1k, 300 epochs: top-1 82.2, 24M parameters (NeurIPS 2021).

    tools/dist_train.sh configs/soft_small_plain_in1k.py 8
"""
_base_ = 'soft_small_in1k.py'
model = dict(backbone=dict(attention_norm=False))
