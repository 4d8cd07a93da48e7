"""Small models of timm, and an image."""

import timm
import torch

import mmsoft.timm  # noqa: F401

NANO = dict(arch=dict(embed_dims=[32] * 4, num_heads=[1] * 4, depths=[1] * 4))
COLUMN = dict(embed_dims=32, num_heads=1, depth=3)
SMALL = dict(
    soft_tiny=NANO,
    soft_norm_tiny=NANO,
    sima_deit_tiny=dict(arch=COLUMN, img_size=32),
    sima_xcit_nano_12_p16=dict(arch=dict(COLUMN, patch_size=16)),
    sima_cvt_13=dict(arch=dict(embed_dims=[32] * 3, num_heads=[1] * 3, depths=[1] * 3)),
)


def small(name, **options):
    return timm.create_model(name, **{**SMALL[name], **options})


def image(batch=1, side=64):
    return torch.rand(batch, 3, side, side)
