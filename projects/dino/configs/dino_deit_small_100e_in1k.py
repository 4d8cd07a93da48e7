"""DINO with DeiT-S (ViT-S/16) on ImageNet-1k, 100 epochs: k-NN 69.3 (arXiv 2206.08898, Table 4).

tools/dist_train.sh projects/dino/configs/dino_deit_small_100e_in1k.py 4
"""

_base_ = '_base_/dino_in1k.py'
model = dict(
    backbone=dict(
        type='mmsoft.SimADeiT', attention=dict(type='SoftmaxAttention'), out_type='cls_token', drop_path_rate=0.1
    )
)
