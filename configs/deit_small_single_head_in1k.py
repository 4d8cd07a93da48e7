"""DeiT-S with a single head on ImageNet-1k: top-1 77.0 (arXiv 2206.08898, Table 5).

tools/dist_train.sh configs/deit_small_single_head_in1k.py 8
"""

_base_ = 'deit_small_in1k.py'
model = dict(backbone=dict(num_heads=1))
