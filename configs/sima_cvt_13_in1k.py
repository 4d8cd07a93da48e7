"""SimA in the architecture of CvT-13 on ImageNet-1k, 300 epochs: top-1 81.4 (arXiv 2206.08898, Table 1).

tools/dist_train.sh configs/sima_cvt_13_in1k.py 8
"""

_base_ = '_base_/sima_in1k.py'
model = dict(backbone=dict(type='mmsoft.SimACvT', arch='13'), head=dict(in_channels=384))
