"""SOFT-Medium without attention normalisation on ImageNet-1k: top-1 82.9 (arXiv 2110.11945, Table 3).

tools/dist_train.sh configs/soft_medium_plain_in1k.py 8
"""

_base_ = 'soft_medium_in1k.py'
model = dict(backbone=dict(attention_norm=False))
optim_wrapper = dict(optimizer=dict(lr=3.5e-4))
