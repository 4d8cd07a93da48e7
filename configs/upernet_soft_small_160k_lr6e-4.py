"""UperNet with SOFT-Norm-Small on ADE20K, 160k, by the printed learning rate: mIoU 46.2 (arXiv 2207.03341, Table 6).

tools/dist_train.sh configs/upernet_soft_small_160k_lr6e-4.py 8
"""

_base_ = 'upernet_soft_small_160k.py'
optim_wrapper = dict(optimizer=dict(lr=6e-4))
