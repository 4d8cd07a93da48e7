"""Linformer in SOFT-Tiny on ImageNet-1k: top-1 78.2 (arXiv 2110.11945, Table 1).

tools/dist_train.sh configs/soft_tiny_linformer_in1k.py 8
"""

_base_ = 'soft_tiny_in1k.py'
model = dict(backbone=dict(attention=dict(type='LinformerAttention')))
