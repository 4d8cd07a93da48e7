"""SOFT-Norm without a pyramid, in the architecture of DeiT-S, on ImageNet-1k: top-1 80.1 (arXiv 2207.03341, Table 9).

The paper leaves open whether layers are post-norm; these are pre-norm, as DeiT's.

    tools/dist_train.sh configs/soft_deit_small_in1k.py 8
"""

_base_ = '_base_/soft_in1k.py'
architecture = dict(type='mmsoft.SimADeiT', arch=dict(embed_dims=384, num_heads=12, depth=12), out_type='cls_token')
model = dict(
    backbone=dict(_delete_=True, attention=dict(type='SOFTAttention'), drop_path_rate=0.1, **architecture),
    head=dict(in_channels=384),
)
