"""Linear evaluation of SimA-XCiT-S12/16 on four vectors of the class-attention and last blocks: top-1 75.5 (arXiv 2206.08898, Table 4).

tools/dist_train.sh projects/dino/configs/linear_sima_xcit_small_12_p16_in1k.py 8
"""

_base_ = '_base_/linear_in1k.py'
start = dict(
    type='Pretrained',
    checkpoint='work_dirs/dino_sima_xcit_small_12_p16_100e_in1k/epoch_100.pth',
    prefix='teacher.backbone.',
)
backbone = dict(type='mmsoft.SimAXCiT', arch='small-12-p16', out_type='cls_token', init_cfg=start)
vectors = dict(class_tokens=['cls_blocks.0', 'cls_blocks.1'], means=['blocks.10', 'blocks.11'])
model = dict(backbone=dict(backbone=backbone, **vectors), head=dict(in_channels=4 * 384))
