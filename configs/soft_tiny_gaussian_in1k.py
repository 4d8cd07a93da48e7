"""Exact Gaussian attention in SOFT-Tiny on ImageNet-1k: fails to train (arXiv 2110.11945, App. A.3).

tools/dist_train.sh configs/soft_tiny_gaussian_in1k.py 8
"""

_base_ = 'soft_tiny_in1k.py'
model = dict(backbone=dict(attention=dict(type='GaussianAttention')))
