"""CosFormer with 2-D re-weighting in XCiT-S12/16: does not converge (arXiv 2206.08898, App. A.3).

tools/dist_train.sh configs/xcit_small_12_p16_cosformer_2d_in1k.py 8
"""

_base_ = 'xcit_small_12_p16_cosformer_in1k.py'
model = dict(backbone=dict(attention=dict(reweight=True)))
