"""SimA backbones for dense prediction, with their ImageNet weights, which nobody has published."""

_base_ = 'reliable.py'
sima_xcit_small_12_p16 = dict(
    type='mmsoft.SimAXCiT',
    arch='small-12-p16',
    drop_path_rate=0.05,
    init_cfg=dict(type='Pretrained', checkpoint='checkpoints/sima_xcit_small_12_p16.pth'),
)
sima_pyramid_p16 = dict(type='mmsoft.RescalePyramid', in_channels=384, rescales=(4, 2, 1, 0.5))
