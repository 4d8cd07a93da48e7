"""UperNet with SOFT-Norm-Medium on ADE20K, 160k: mIoU 48.0 (arXiv 2207.03341, Table 6).

tools/dist_train.sh configs/upernet_soft_medium_160k.py 8
"""

_base_ = 'upernet_soft_small_160k.py'
model = dict(
    backbone=dict(_delete_=True, **_base_.soft_medium),
    decode_head=dict(in_channels=_base_.soft_medium_channels),
    auxiliary_head=dict(in_channels=_base_.soft_medium_channels[2]),
)
