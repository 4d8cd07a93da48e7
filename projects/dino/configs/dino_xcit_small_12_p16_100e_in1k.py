"""DINO with XCiT-S12/16 on ImageNet-1k, 100 epochs: k-NN 71.6 (arXiv 2206.08898, Table 4).

tools/dist_train.sh projects/dino/configs/dino_xcit_small_12_p16_100e_in1k.py 4
"""

_base_ = ['_base_/dino_in1k.py', '../../../configs/_base_/xcit.py']
model = dict(backbone=dict(_base_.xcit_small_12_p16, drop_path_rate=0.1, init_cfg=_base_.xcit_start))
