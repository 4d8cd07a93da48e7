"""SOFT-Large without attention normalisation on ImageNet-1k: top-1 83.1 (arXiv 2110.11945, Table 3).

tools/dist_train.sh configs/soft_large_plain_in1k.py 8
"""

_base_ = 'soft_large_in1k.py'
model = dict(backbone=dict(attention_norm=False))
