"""SOFT-Norm-Tiny with random tokens as bottleneck on ImageNet-1k: top-1 79.3 (arXiv 2207.03341, Table 8).

tools/dist_train.sh configs/soft_tiny_random_in1k.py 8
"""

_base_ = 'soft_tiny_in1k.py'
model = dict(backbone=dict(attention=dict(type='SOFTAttention', sampling='random')))
