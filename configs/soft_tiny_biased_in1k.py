"""SOFT-Norm-Tiny with the first tokens as bottleneck on ImageNet-1k: top-1 79.0 (arXiv 2207.03341, Table 8).

tools/dist_train.sh configs/soft_tiny_biased_in1k.py 8
"""

_base_ = 'soft_tiny_in1k.py'
model = dict(backbone=dict(attention=dict(type='SOFTAttention', sampling='biased')))
