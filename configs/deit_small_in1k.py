"""DeiT-S, SimA's architecture with softmax, on ImageNet-1k, 300 epochs: top-1 79.8 (arXiv 2206.08898, Table 1).

tools/dist_train.sh configs/deit_small_in1k.py 8
"""

_base_ = 'sima_deit_small_in1k.py'
model = dict(backbone=dict(attention=dict(type='SoftmaxAttention')))
