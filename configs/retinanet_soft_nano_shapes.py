"""RetinaNet with a SOFT-Norm of 2M parameters on the synthetic shapes, minutes on two CPU cores.

tools/train.py configs/retinanet_soft_nano_shapes.py
"""

_base_ = ['mmdet::_base_/models/retinanet_r50_fpn.py', '_base_/shapes_detection.py']
arch = dict(embed_dims=[32, 96, 160, 256], num_heads=[1, 3, 5, 8], depths=[1, 2, 2, 1])
anchors = dict(octave_base_scale=2, scales_per_octave=2, ratios=[0.6, 1.0, 1.7], strides=[8, 16, 32, 64])
head = dict(num_classes=6, in_channels=64, feat_channels=64, stacked_convs=2, norm_cfg=dict(type='GN', num_groups=16))
iou = dict(_delete_=True, type='GIoULoss', loss_weight=1.0)
attention = dict(type='SOFTAttention', initial_gamma=0.3)  # from scratch, a kernel that begins wide
model = dict(
    backbone=dict(_delete_=True, type='mmsoft.SOFT', arch=arch, attention=attention),
    neck=dict(in_channels=arch['embed_dims'], out_channels=64, num_outs=4, norm_cfg=dict(type='BN')),
    bbox_head=dict(anchor_generator=anchors, reg_decoded_bbox=True, loss_bbox=iou, **head),
    test_cfg=dict(nms_pre=300),
)
