"""SOFT-Norm-Small on ImageNet-1k as the published code builds it: 20 blocks in stage 2 where the paper has 7.

tools/dist_train.sh configs/soft_small_20_blocks_in1k.py 8
"""

_base_ = '_base_/soft_in1k.py'
model = dict(backbone=dict(arch=dict(embed_dims=[64, 128, 320, 512], num_heads=[2, 4, 10, 16], depths=[1, 3, 20, 4])))
