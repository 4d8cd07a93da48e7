"""XCiT-S12/16 by the recipe of SimA on ImageNet-1k, 400 epochs: top-1 82.0 (arXiv 2206.08898, Table 1).

tools/dist_train.sh configs/xcit_small_12_p16_in1k.py 8
"""

_base_ = ['_base_/sima_in1k.py', '_base_/xcit.py']
model = dict(backbone=dict(_base_.xcit_small_12_p16, init_cfg=_base_.xcit_start), head=dict(in_channels=384))
train_cfg = dict(max_epochs=400)
