"""RTMDet with SimA-XCiT-S12/16 on COCO, 640x640, 100 epochs, by RTMDet's recipe for transformers.

The paper does not train it. It needs mmdet 3.3.0 or newer.

    tools/dist_train.sh configs/rtmdet_sima_xcit_small_12_p16_100e.py 4
"""

_base_ = 'rtmdet_soft_small_100e.py'
init_cfg = dict(type='Pretrained', checkpoint='checkpoints/sima_xcit_small_12_p16.pth')
backbone = dict(type='mmsoft.SimAXCiT', arch='small-12-p16', drop_path_rate=0.05, out_indices=(5, 7, 11))
pyramid = dict(type='mmsoft.RescalePyramid', in_channels=384, rescales=(2, 1, 0.5))
model = dict(
    backbone=dict(_delete_=True, **backbone, init_cfg=init_cfg),
    neck=[pyramid, dict(_base_.model.neck, in_channels=[384] * 3)],
)
