"""SimA-XCiT-S12/16 without normalisation on ImageNet-1k: does not converge (arXiv 2206.08898, Sec. 4.6).

tools/dist_train.sh configs/sima_xcit_small_12_p16_no_norm_in1k.py 8
"""

_base_ = 'sima_xcit_small_12_p16_in1k.py'
model = dict(backbone=dict(attention=dict(type='SimAAttention', p=None)))
