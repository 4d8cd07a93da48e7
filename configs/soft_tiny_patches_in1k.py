"""SOFT-Norm-Tiny with patches that do not overlap on ImageNet-1k: top-1 77.4 (arXiv 2207.03341, Table 9).

tools/dist_train.sh configs/soft_tiny_patches_in1k.py 8
"""

_base_ = 'soft_tiny_in1k.py'
model = dict(backbone=dict(embedding='patches'))
