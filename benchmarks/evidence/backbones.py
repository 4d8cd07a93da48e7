"""The small backbones: ours, some of the OpenMMLab libraries of about their size, and what the papers compare with."""
from typing import Any, Dict, NamedTuple, Optional, Sequence


class Backbone(NamedTuple):
    """A small backbone.

    Attributes:
        title: Its name in tables.
        channels: Of the maps it returns.
        dense: Its config as the backbone of a detector or segmenter.
        classifier: What is different in a classifier.
        rescales: Of the :class:`mmsoft.RescalePyramid` behind it, if all its maps have one stride.
        pooled: Whether a classifier averages its last map, because it has no class token.
    """

    title: str
    channels: Sequence[int]
    dense: Dict[str, Any]
    classifier: Dict[str, Any] = {}
    rescales: Optional[Sequence[float]] = None
    pooled: bool = False


DIMS, HEADS, DEPTHS = [32, 64, 128, 192], [1, 2, 4, 6], [1, 2, 2, 1]
BLOCKS = dict(embed_dims=96, num_heads=4, depth=4)  # of networks without a pyramid
CLASS_TOKEN = dict(out_type='cls_token')


def _soft(title: str, **options: Any) -> Backbone:
    arch = dict(embed_dims=DIMS, num_heads=HEADS, depths=DEPTHS)
    return Backbone(title, DIMS, dict(type='mmsoft.SOFT', arch=arch, img_size=128, **options), CLASS_TOKEN)


def _pvt(stages: int) -> Backbone:
    """PVTv2 of SOFT's sizes. It always has four stages; those that are not used are as small as possible."""
    cfg = dict(type='mmdet.PyramidVisionTransformerV2', embed_dims=DIMS[0], num_layers=DEPTHS, mlp_ratios=[4] * 4,
               num_heads=HEADS[:stages] + [1] * (4 - stages), drop_path_rate=0., out_indices=tuple(range(stages)))
    return Backbone('PVTv2', DIMS[:stages], cfg)


def _resnet(width: int) -> Backbone:
    """A ResNet-18 that starts with ``width`` channels; the published one has 64."""
    cfg = dict(type='mmpretrain.ResNet', depth=18, stem_channels=width, base_channels=width)
    return Backbone('ResNet-18', [width, 2 * width, 4 * width, 8 * width], cfg, pooled=True)


def _plain(title: str, patch_size: int, cfg: Dict[str, Any], **classifier: Any) -> Backbone:
    """A network of four blocks, whose maps all have the stride of its patches."""
    rescales = {16: (4, 2, 1, 0.5), 8: (2, 1, 0.5, 0.25)}[patch_size]
    return Backbone(f'{title}, patch {patch_size}', [BLOCKS['embed_dims']] * 4, dict(cfg, out_indices=(0, 1, 2, 3)),
                    dict(classifier, **CLASS_TOKEN), rescales)


def _sima_xcit(patch_size: int) -> Backbone:
    arch = dict(BLOCKS, patch_size=patch_size, gamma=1., norm_tokens=True)
    return _plain('SimA-XCiT', patch_size, dict(type='mmsoft.SimAXCiT', arch=arch))


def _xcit(patch_size: int) -> Backbone:
    cfg = dict(BLOCKS, type='mmpretrain.XCiT', patch_size=patch_size, layer_scale_init_value=1., tokens_norm=True,
               cls_attn_layers=0, out_type='featmap')
    return _plain('XCiT', patch_size, cfg, cls_attn_layers=2, out_indices=(-1, ))


_CVT = dict(embed_dims=DIMS[:3], num_heads=HEADS[:3], depths=[1, 2, 4])
_VIT = dict(embed_dims=96, num_heads=4, num_layers=4, feedforward_channels=384)
BACKBONES = dict(
    soft=_soft('SOFT', attention_norm=False),
    soft_norm=_soft('SOFT-Norm', attention_norm=True),
    sima_xcit_p16=_sima_xcit(16),
    sima_xcit_p8=_sima_xcit(8),
    sima_deit=_plain('SimA-DeiT', 8, dict(type='mmsoft.SimADeiT', arch=BLOCKS, patch_size=8, img_size=128),
                     img_size=64),
    sima_cvt=Backbone('SimA-CvT', DIMS[:3], dict(type='mmsoft.SimACvT', arch=_CVT), CLASS_TOKEN),
    pvt=_pvt(4),
    pvt_3=_pvt(3),
    resnet_24=_resnet(24),
    resnet_20=_resnet(20),
    xcit_p16=_xcit(16),
    xcit_p8=_xcit(8),
    deit=_plain('DeiT', 8, dict(type='mmpretrain.VisionTransformer', arch=_VIT, patch_size=8, img_size=128,
                                out_type='featmap'), img_size=64, out_indices=[3]),
)


def _with(base: str, title: str, attention: Optional[str] = None, class_attention: Optional[dict] = None,
          options: Dict[str, Any] = {}, **attention_options: Any) -> Backbone:
    """A backbone with another attention, or with other options."""
    changes = dict(options)
    if attention:
        changes['attention'] = dict(type=attention, **attention_options)
    if class_attention:
        changes['class_attention'] = class_attention
    return BACKBONES[base]._replace(title=title, dense={**BACKBONES[base].dense, **changes})


_CLASS, _XCIT, _DEIT, _SOFT = dict(type='SoftmaxClassAttention'), 'sima_xcit_p8', 'sima_deit', 'soft_norm'
COMPARED = dict(
    soft_softmax=_with(_SOFT, 'Transformer', 'SoftmaxAttention'),
    soft_linformer=_with(_SOFT, 'Linformer', 'LinformerAttention'),
    soft_performer=_with(_SOFT, 'Performer', 'PerformerAttention'),
    soft_nystromformer=_with(_SOFT, 'Nyströmformer', 'NystromformerAttention'),
    soft_gaussian=_with(_SOFT, 'exact Gaussian', 'GaussianAttention'),
    soft_gaussian_softmax=_with(_SOFT, 'softmax of the exact Gaussian', 'GaussianAttention', normalise='softmax'),
    soft_patches=_with(_SOFT, 'SOFT-Norm, patches that do not overlap', options=dict(embedding='patches')),
    **{f'soft_bottleneck_{side**2}': _with(_SOFT, f'SOFT-Norm, {side}×{side} bottleneck tokens at most',
                                           'SOFTAttention', bottleneck_size=side) for side in (6, 7, 8, 9)},
    soft_avg_pool=_with(_SOFT, 'SOFT-Norm, average pooling', 'SOFTAttention', sampling='avg_pool'),
    soft_random=_with(_SOFT, 'SOFT-Norm, random tokens', 'SOFTAttention', sampling='random'),
    soft_biased=_with(_SOFT, 'SOFT-Norm, the first tokens', 'SOFTAttention', sampling='biased'),
    soft_deit=_with(_DEIT, 'SOFT-Norm without a pyramid', 'SOFTAttention'),
    deit_single_head=_with(_DEIT, 'DeiT, one head', 'SoftmaxAttention', options=dict(num_heads=1)),
    sima_deit_single_head=_with(_DEIT, 'SimA-DeiT, one head', options=dict(num_heads=1)),
    sima_deit_relu=_with(_DEIT, 'SimA-DeiT, ReLU', options=dict(act_cfg=dict(type='ReLU'))),
    xcit_efficient=_with(_XCIT, 'Efficient attention', 'EfficientAttention', _CLASS),
    xcit_cosformer=_with(_XCIT, 'CosFormer', 'CosFormerAttention', _CLASS),
    xcit_cosformer_2d=_with(_XCIT, 'CosFormer, 2-D re-weighting', 'CosFormerAttention', _CLASS, reweight=True),
    sima_xcit_none=_with(_XCIT, 'SimA without a norm', 'SimAAttention', dict(type='SimAClassAttention', p=None),
                         p=None),
    sima_xcit_l2=_with(_XCIT, 'SimA, l2 norm', 'SimAAttention', dict(type='SimAClassAttention', p=2), p=2),
    sima_xcit_no_lpi=_with(_XCIT, 'SimA without local patch interaction', options=dict(lpi=False)),
)
"""What the papers compare with."""
BACKBONES.update(COMPARED)
