"""UperNet with SOFT-Norm-Small on ADE20K, 160k: mIoU 46.2 (arXiv 2207.03341, Table 6), without multi-scale training.

The paper prints a learning rate of 6e-4, which upernet_soft_small_160k_lr6e-4.py has; comparable backbones use 6e-5.

    tools/dist_train.sh configs/upernet_soft_small_160k.py 8
"""

_base_ = ['mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py', '_base_/soft.py']
model = dict(
    backbone=dict(_delete_=True, **_base_.soft_small),
    decode_head=dict(in_channels=_base_.soft_channels),
    auxiliary_head=dict(in_channels=_base_.soft_channels[2]),
)
resize = dict(type='Resize', scale=(2048, 512), keep_ratio=True)
train_dataloader = dict(dataset=dict(pipeline=[*_base_.train_pipeline[:2], resize, *_base_.train_pipeline[3:]]))
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'pos_embed': dict(decay_mult=0.0), 'cls_token': dict(decay_mult=0.0)})
)
auto_scale_lr = dict(enable=False, base_batch_size=16)
