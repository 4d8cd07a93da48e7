"""Efficient attention in XCiT-S12/16 on ImageNet-1k: top-1 80.9 (arXiv 2206.08898, Table 2).

tools/dist_train.sh configs/xcit_small_12_p16_efficient_in1k.py 8
"""

_base_ = 'sima_xcit_small_12_p16_in1k.py'
model = dict(
    backbone=dict(attention=dict(type='EfficientAttention'), class_attention=dict(type='SoftmaxClassAttention'))
)
