"""SOFT-Norm-Tiny with 64 bottleneck tokens at most on ImageNet-1k: top-1 79.4 (arXiv 2207.03341, Table 7).

In stages 0 to 2, however large the image.

    tools/dist_train.sh configs/soft_tiny_bottleneck_64_in1k.py 8
"""

_base_ = 'soft_tiny_in1k.py'
model = dict(backbone=dict(attention=dict(type='SOFTAttention', bottleneck_size=8)))
