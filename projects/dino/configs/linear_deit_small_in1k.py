"""Linear evaluation of DeiT-S (ViT-S/16) on class tokens of the last four blocks, which is DINO's own: top-1 74.0 (arXiv 2206.08898, Table 4).

tools/dist_train.sh projects/dino/configs/linear_deit_small_in1k.py 8
"""

_base_ = '_base_/linear_in1k.py'
start = dict(
    type='Pretrained', checkpoint='work_dirs/dino_deit_small_100e_in1k/epoch_100.pth', prefix='teacher.backbone.'
)
backbone = dict(type='mmsoft.SimADeiT', attention=dict(type='SoftmaxAttention'), out_type='cls_token', init_cfg=start)
vectors = dict(class_tokens=['blocks.8', 'blocks.9', 'blocks.10', 'blocks.11'])
model = dict(backbone=dict(backbone=backbone, **vectors), head=dict(in_channels=4 * 384))
