"""SOFT-Medium, without attention normalisation, on ImageNet-1k, 300 epochs: top-1 82.9, 45M parameters (NeurIPS 2021).

    tools/dist_train.sh configs/soft_medium_plain_in1k.py 8
"""
_base_ = 'soft_medium_in1k.py'
model = dict(backbone=dict(attention_norm=False))
