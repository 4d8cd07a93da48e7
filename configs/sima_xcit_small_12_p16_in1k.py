"""SimA in the architecture of XCiT-S12/16 on ImageNet-1k, 400 epochs: top-1 82.1 (arXiv 2206.08898, Table 1).

tools/dist_train.sh configs/sima_xcit_small_12_p16_in1k.py 8
"""

_base_ = '_base_/sima_in1k.py'
model = dict(backbone=dict(type='mmsoft.SimAXCiT', arch='small-12-p16'), head=dict(in_channels=384))
train_cfg = dict(max_epochs=400)
