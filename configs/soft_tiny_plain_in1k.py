"""SOFT-Tiny without attention normalisation on ImageNet-1k: top-1 79.3 (arXiv 2110.11945, Table 3).

tools/dist_train.sh configs/soft_tiny_plain_in1k.py 8
"""

_base_ = 'soft_tiny_in1k.py'
model = dict(backbone=dict(attention_norm=False))
