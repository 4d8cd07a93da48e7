"""UperNet with SOFT-Small on ADE20K, one epoch: mIoU 10.7 (arXiv 2207.03341, Table 10).

tools/dist_train.sh configs/upernet_soft_small_plain_1epoch.py 8
"""

_base_ = 'upernet_soft_small_1epoch.py'
model = dict(backbone=dict(attention_norm=False, init_cfg=dict(checkpoint='checkpoints/soft_small.pth')))
