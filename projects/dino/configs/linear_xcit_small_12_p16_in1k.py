"""Linear evaluation of XCiT-S12/16 on four vectors of the class-attention and last blocks: top-1 75.8 (arXiv 2206.08898, Table 4).

tools/dist_train.sh projects/dino/configs/linear_xcit_small_12_p16_in1k.py 8
"""

_base_ = ['_base_/linear_in1k.py', '../../../configs/_base_/xcit.py']
start = dict(
    type='Pretrained', checkpoint='work_dirs/dino_xcit_small_12_p16_100e_in1k/epoch_100.pth', prefix='teacher.backbone.'
)
backbone = dict(_base_.xcit_small_12_p16, init_cfg=start)
vectors = dict(class_tokens=['ca_layers.0', 'ca_layers.1'], means=['xca_layers.10', 'xca_layers.11'])
model = dict(backbone=dict(backbone=backbone, **vectors), head=dict(in_channels=4 * 384))
