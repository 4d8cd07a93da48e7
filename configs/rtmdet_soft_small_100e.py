"""RTMDet with SOFT-Norm-Small on COCO, 640x640, 100 epochs, by RTMDet's recipe for transformers.

The paper does not train it. It needs mmdet 3.3.0 or newer.

    tools/dist_train.sh configs/rtmdet_soft_small_100e.py 4
"""

_base_ = 'mmdet::rtmdet/rtmdet_l_swin_b_4xb32-100e_coco.py'
init_cfg = dict(type='Pretrained', checkpoint='checkpoints/soft_norm_small.pth')
backbone = dict(type='mmsoft.SOFT', arch='small', attention_norm=True, out_indices=(1, 2, 3), init_cfg=init_cfg)
model = dict(backbone=dict(_delete_=True, **backbone), neck=dict(in_channels=[128, 320, 512]))
auto_scale_lr = dict(base_batch_size=128)  # the base's, 16, is that of another schedule
# As in _base_/reliable.py, which a base with hooks cannot stand beside.
custom_imports = dict(imports=['mmsoft.checkpoint.safe_loading'])
runner_type = 'mmsoft.Runner'
names = ('WholeCheckpointsHook', 'FiniteTrainingHook', 'AttentionShareHook')
custom_hooks = [*(dict(type=f'mmsoft.{name}') for name in names), *_base_.custom_hooks]
