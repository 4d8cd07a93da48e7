"""Mask R-CNN with XCiT-S12/16 on COCO, 3x: box AP 45.0, mask AP 40.5 (arXiv 2206.08898, Table 3).

The weights are mmpretrain's xcit-small-12-p16_3rdparty_in1k.

    tools/dist_train.sh configs/mask_rcnn_xcit_small_12_p16_3x.py 8
"""

_base_ = ['mask_rcnn_sima_xcit_small_12_p16_3x.py', '_base_/xcit.py']
weights = dict(type='Pretrained', checkpoint='checkpoints/xcit_small_12_p16.pth', prefix='backbone.')
maps = dict(out_type='featmap', out_indices=(3, 5, 7, 11), cls_attn_layers=0, final_norm=False, init_cfg=weights)
model = dict(backbone=dict(_delete_=True, **maps, **_base_.xcit_small_12_p16))
find_unused_parameters = True  # a class token is there even where nothing attends to it
