"""SimA in the architecture of DeiT-S with a single head on ImageNet-1k: top-1 79.4 (arXiv 2206.08898, Table 5).

tools/dist_train.sh configs/sima_deit_small_single_head_in1k.py 8
"""

_base_ = 'sima_deit_small_in1k.py'
model = dict(backbone=dict(num_heads=1))
