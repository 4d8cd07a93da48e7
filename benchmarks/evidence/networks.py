"""The small backbones of detectors, segmenters and classifiers: ours, and some of the OpenMMLab libraries."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple, Optional

import torch
from mmdet.models.backbones.pvt import SpatialReductionAttention
from mmpretrain.models.backbones.xcit import XCA
from mmpretrain.models.utils import MultiheadAttention
from torch import nn

from mmsoft.attention.measure import measured_attention, without_attention


class Network(NamedTuple):
    """A small backbone.

    Attributes:
        cfg: Its config.
        channels: Of the maps it returns.
        rescales: Of the :class:`mmsoft.RescalePyramid` behind it, if all its maps have one stride.
    """

    cfg: dict[str, Any]
    channels: Sequence[int]
    rescales: Optional[Sequence[float]] = None

    def only(self, maps: slice) -> 'Network':
        """The same with some of its maps."""
        out_indices = tuple(self.cfg.get('out_indices', range(len(self.channels))))[maps]
        return Network(
            dict(self.cfg, out_indices=out_indices), self.channels[maps], self.rescales and self.rescales[maps]
        )


DIMS, HEADS, DEPTHS = [32, 64, 128], [1, 2, 4], [1, 2, 2]
BLOCKS = dict(embed_dims=96, num_heads=4, depth=4)  # of networks without a pyramid


def _soft(norm: bool, gamma: float) -> Network:
    """Three stages with small kernels and without softmax: nothing but SOFT's attention reaches far."""
    arch = dict(embed_dims=DIMS, num_heads=HEADS, depths=DEPTHS, kernel_sizes=[3, 3, 3])
    attention = dict(type='SOFTAttention', norm=norm, initial_gamma=gamma)
    return Network(dict(type='mmsoft.SOFT', img_size=96, attention=attention, arch=arch, out_indices=(0, 1, 2)), DIMS)


def _plain(patch: int, **cfg: Any) -> Network:
    """A network of four blocks, whose maps all have the stride of its patches."""
    rescales = [patch / stride for stride in (4, 8, 16, 32)]
    return Network(dict(cfg, out_indices=(0, 1, 2, 3)), [BLOCKS['embed_dims']] * 4, rescales)


XCIT = dict(
    init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),  # mmpretrain's default has a deviation of 1
    **BLOCKS,
    layer_scale_init_value=1.0,
    tokens_norm=True,
    cls_attn_layers=0,
    out_type='featmap',
)
VIT = dict(embed_dims=96, num_heads=4, num_layers=4, feedforward_channels=384)
PVT = dict(  # it always has four stages; the last one, which is not used, is small
    embed_dims=DIMS[0],
    num_layers=[*DEPTHS, 1],
    mlp_ratios=[4] * 4,
    num_heads=[*HEADS, 1],
    drop_path_rate=0.0,
    out_indices=(0, 1, 2),
)
NETWORKS = dict(
    soft=_soft(False, 0.6),
    soft_norm=_soft(True, 0.3),
    soft_03=_soft(False, 0.3),
    soft_1=_soft(False, 1.0),
    soft_norm_1=_soft(True, 1.0),
    pvt=Network(dict(type='mmdet.PyramidVisionTransformerV2', **PVT), DIMS),
    sima_cvt=Network(dict(type='mmsoft.SimACvT', arch=dict(embed_dims=DIMS, num_heads=HEADS, depths=DEPTHS)), DIMS),
    sima_xcit_p16=_plain(16, type='mmsoft.SimAXCiT', arch=dict(BLOCKS, patch_size=16)),
    xcit_p16=_plain(16, type='mmpretrain.XCiT', patch_size=16, **XCIT),
    sima_xcit_p8=_plain(8, type='mmsoft.SimAXCiT', arch=dict(BLOCKS, patch_size=8)),
    xcit_p8=_plain(8, type='mmpretrain.XCiT', patch_size=8, **XCIT),
    sima_deit=_plain(8, type='mmsoft.SimADeiT', arch=BLOCKS, patch_size=8, img_size=96),
    deit=_plain(8, type='mmpretrain.VisionTransformer', patch_size=8, img_size=96, out_type='featmap', arch=VIT),
)
PROJECTIONS = {MultiheadAttention: 'proj', XCA: 'proj', SpatialReductionAttention: 'attn.out_proj'}
"""Attentions of the OpenMMLab libraries, and the projection behind each."""


@contextmanager
def all_without_attention(backbone: nn.Module) -> Iterator[None]:
    """:func:`mmsoft.attention.measure.without_attention`, also for backbones of the OpenMMLab libraries."""
    theirs = [one for one in backbone.modules() if type(one) in PROJECTIONS]
    weights = [one.get_submodule(PROJECTIONS[type(one)]).weight for one in theirs]
    kept = [weight.detach().clone() for weight in weights]
    with torch.no_grad(), without_attention(backbone):
        for weight in weights:
            weight.zero_()
        yield
        for weight, before in zip(weights, kept):
            weight.copy_(before)


def scored(model: nn.Module, score: Callable[[], dict[str, float]]) -> dict[str, dict]:
    """Scores of a model, the same ``without_attention``, and what each of its attentions contributes."""
    with measured_attention(model) as contributions:
        scores = score()
    with all_without_attention(model):
        control = score()
    return dict(
        scores=scores,
        without_attention=control,
        shares={name: one.share for name, one in contributions.items()},
        exponents={name: one.exponent for name, one in contributions.items() if one.exponent is not None},
    )
