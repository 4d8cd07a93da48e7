"""UperNet with a SOFT-Norm of 2M parameters on the synthetic shapes: `make segment`, minutes on two CPU cores.

python -m benchmarks.showcase configs/upernet_soft_nano_shapes.py
"""

_base_ = ['mmseg::_base_/models/upernet_swin.py', 'mmseg::_base_/default_runtime.py', '_base_/shapes_segmentation.py']
arch = dict(embed_dims=[32, 96, 160, 256], num_heads=[1, 3, 5, 8], depths=[1, 2, 2, 1])
attention = dict(type='SOFTAttention', initial_gamma=0.3)  # from scratch, a kernel that begins wide
model = dict(
    data_preprocessor=dict(size=(128, 128), test_cfg=dict(size=(128, 128))),  # BatchNorm has seen padded scenes only
    backbone=dict(_delete_=True, type='mmsoft.SOFT', arch=arch, attention=attention),
    decode_head=dict(in_channels=arch['embed_dims'], channels=64, num_classes=10, norm_cfg=dict(type='BN')),
    auxiliary_head=None,
)
