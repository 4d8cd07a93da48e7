"""UperNet with SimA-XCiT-S12/16 on ADE20K, 160k, by XCiT's recipe. The paper does not segment.

tools/dist_train.sh configs/upernet_sima_xcit_small_12_p16_160k.py 8
"""

_base_ = ['mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py', '_base_/sima.py']
model = dict(
    backbone=dict(_delete_=True, **_base_.sima_xcit_small_12_p16),
    neck=_base_.sima_pyramid_p16,
    decode_head=dict(in_channels=[384] * 4),
    auxiliary_head=dict(in_channels=384),
)
auto_scale_lr = dict(enable=False, base_batch_size=16)
