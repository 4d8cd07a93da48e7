"""GFL with soft_norm.py's network and a depthwise convolution in its feed-forward networks, as PVTv2 has.

python -m projects.trees soft_norm_mix
"""

_base_ = 'soft_norm.py'
custom_imports = dict(imports=[*_base_.custom_imports.imports, 'projects.trees.blocks'])
model = dict(backbone=dict(type='mmsoft.MixSOFT'))
