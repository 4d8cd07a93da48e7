"""DINO with SimA-XCiT-S12/16 on ImageNet-1k, 100 epochs: k-NN 71.2 (arXiv 2206.08898, Table 4).

tools/dist_train.sh projects/dino/configs/dino_sima_xcit_small_12_p16_100e_in1k.py 4
"""

_base_ = '_base_/dino_in1k.py'
model = dict(backbone=dict(type='mmsoft.SimAXCiT', arch='small-12-p16', out_type='cls_token', drop_path_rate=0.1))
