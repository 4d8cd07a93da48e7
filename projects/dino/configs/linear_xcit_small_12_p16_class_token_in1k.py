"""Linear evaluation of XCiT-S12/16 by DINO's own script for it, on the class token alone.

tools/dist_train.sh projects/dino/configs/linear_xcit_small_12_p16_class_token_in1k.py 8
"""

_base_ = 'linear_xcit_small_12_p16_in1k.py'
model = dict(backbone=dict(class_tokens=['ca_layers.1'], means=[]), head=dict(in_channels=384))
