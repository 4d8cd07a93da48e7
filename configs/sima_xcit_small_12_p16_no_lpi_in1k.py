"""SimA-XCiT-S12/16 without local patch interaction on ImageNet-1k: top-1 80.9 (arXiv 2206.08898, App. A.2).

tools/dist_train.sh configs/sima_xcit_small_12_p16_no_lpi_in1k.py 8
"""

_base_ = 'sima_xcit_small_12_p16_in1k.py'
model = dict(backbone=dict(lpi=False))
