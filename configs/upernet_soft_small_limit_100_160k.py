"""UperNet with SOFT-Norm-Small and at most 100 bottleneck tokens on ADE20K, 160k; not in the paper.

tools/dist_train.sh configs/upernet_soft_small_limit_100_160k.py 8
"""

_base_ = 'upernet_soft_small_160k.py'
model = dict(backbone=dict(attention=dict(type='SOFTAttention', bottleneck_limit=100)))
