"""The small backbones: ours, some of the OpenMMLab libraries of about their size, and what the papers compare with."""
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple


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
    classifier: Dict[str, Any]
    rescales: Optional[Sequence[float]] = None
    pooled: bool = False


DIMS, HEADS, DEPTHS = [32, 64, 128, 192], [1, 2, 4, 6], [1, 2, 2, 1]
PLAIN = dict(embed_dims=96, num_heads=4, depth=4)


def _soft(title: str, attention_norm: bool) -> Backbone:
    arch = dict(embed_dims=DIMS, num_heads=HEADS, depths=DEPTHS)
    cfg = dict(type='mmsoft.SOFT', arch=arch, attention_norm=attention_norm, img_size=128)
    return Backbone(title, DIMS, cfg, dict(out_type='cls_token'))


def _sima_cvt() -> Backbone:
    arch = dict(embed_dims=DIMS[:3], num_heads=HEADS[:3], depths=[1, 2, 4])
    return Backbone('SimA-CvT', DIMS[:3], dict(type='mmsoft.SimACvT', arch=arch), dict(out_type='cls_token'))


def _pvt(stages: int) -> Backbone:
    """PVTv2 of SOFT's sizes. It always has four stages; one that is not asked for is as small as can be."""
    sizes = dict(embed_dims=DIMS[0], num_layers=DEPTHS, num_heads=HEADS[:stages] + [1] * (4 - stages))
    cfg = dict(type='mmdet.PyramidVisionTransformerV2', mlp_ratios=[4] * 4, drop_path_rate=0.,
               out_indices=tuple(range(stages)), **sizes)
    return Backbone('PVTv2', DIMS[:stages], cfg, {})


def _resnet(width: int) -> Backbone:
    """A ResNet-18 that starts with so many channels, 64 in the published one."""
    cfg = dict(type='mmpretrain.ResNet', depth=18, stem_channels=width, base_channels=width)
    return Backbone('ResNet-18', [width, 2 * width, 4 * width, 8 * width], cfg, {}, pooled=True)


def _plain(title: str, patch_size: int, cfg: Dict[str, Any], **classifier: Any) -> Backbone:
    """A network of four blocks, whose maps all have the stride of its patches."""
    rescales = {16: (4, 2, 1, 0.5), 8: (2, 1, 0.5, 0.25)}[patch_size]
    return Backbone(f'{title}, patch {patch_size}', [PLAIN['embed_dims']] * 4, dict(cfg, out_indices=(0, 1, 2, 3)),
                    dict(classifier, out_type='cls_token'), rescales)


def _sima_xcit(patch_size: int) -> Backbone:
    arch = dict(PLAIN, patch_size=patch_size, gamma=1., norm_tokens=True)
    return _plain('SimA-XCiT', patch_size, dict(type='mmsoft.SimAXCiT', arch=arch))


def _xcit(patch_size: int) -> Backbone:
    cfg = dict(PLAIN, type='mmpretrain.XCiT', patch_size=patch_size, layer_scale_init_value=1., tokens_norm=True,
               cls_attn_layers=0, out_type='featmap')
    return _plain('XCiT', patch_size, cfg, cls_attn_layers=2, out_indices=(-1, ))


def _sima_deit() -> Backbone:
    cfg = dict(type='mmsoft.SimADeiT', arch=PLAIN, patch_size=8, img_size=128)
    return _plain('SimA-DeiT', 8, cfg, img_size=64)


def _deit() -> Backbone:
    arch = dict(embed_dims=96, num_heads=4, num_layers=4, feedforward_channels=384)
    cfg = dict(type='mmpretrain.VisionTransformer', arch=arch, patch_size=8, img_size=128, out_type='featmap')
    return _plain('DeiT', 8, cfg, img_size=64, out_indices=[3])


BACKBONES = dict(
    soft=_soft('SOFT', False),
    soft_norm=_soft('SOFT-Norm', True),
    sima_xcit_p16=_sima_xcit(16),
    sima_xcit_p8=_sima_xcit(8),
    sima_deit=_sima_deit(),
    sima_cvt=_sima_cvt(),
    pvt=_pvt(4),
    pvt_3=_pvt(3),
    resnet_24=_resnet(24),
    resnet_20=_resnet(20),
    xcit_p16=_xcit(16),
    xcit_p8=_xcit(8),
    deit=_deit(),
)


def _variants(base: str, **networks: Tuple[str, Dict[str, Any]]) -> Dict[str, Backbone]:
    """Networks that differ from another by a title and by arguments."""
    return {name: BACKBONES[base]._replace(title=title, dense={**BACKBONES[base].dense, **options})
            for name, (title, options) in networks.items()}


def _attention(name: str, **options: Any) -> Dict[str, Any]:
    return dict(attention=dict(type=name, **options))


def _in_xcit(name: str, **options: Any) -> Dict[str, Any]:
    """An attention for the patches, and XCiT's own for the class token."""
    return dict(_attention(name, **options), class_attention=dict(type='SoftmaxClassAttention'))


COMPARED = dict(
    **_variants(
        'soft_norm',
        soft_softmax=('Transformer', _attention('SoftmaxAttention')),
        soft_linformer=('Linformer', _attention('LinformerAttention')),
        soft_performer=('Performer', _attention('PerformerAttention')),
        soft_nystromformer=('Nyströmformer', _attention('NystromformerAttention')),
        soft_gaussian=('exact Gaussian', _attention('GaussianAttention')),
        soft_gaussian_softmax=('softmax of the exact Gaussian', _attention('GaussianAttention', normalise='softmax')),
        soft_patches=('SOFT-Norm, patches that do not overlap', dict(embedding='patches')),
        **{f'soft_bottleneck_{side**2}': (f'SOFT-Norm, {side}×{side} bottleneck tokens at most',
                                          dict(bottleneck_size=side)) for side in (6, 7, 8, 9)},
        soft_avg_pool=('SOFT-Norm, average pooling', dict(sampling='avg_pool')),
        soft_random=('SOFT-Norm, random tokens', dict(sampling='random')),
        soft_biased=('SOFT-Norm, the first tokens', dict(sampling='biased')),
    ),
    **_variants(
        'sima_deit',
        soft_deit=('SOFT-Norm without a pyramid', _attention('SOFTAttention')),
        deit_single_head=('DeiT, one head', dict(_attention('SoftmaxAttention'), num_heads=1)),
        sima_deit_single_head=('SimA-DeiT, one head', dict(num_heads=1)),
        sima_deit_relu=('SimA-DeiT, ReLU', dict(act_cfg=dict(type='ReLU'))),
    ),
    **_variants(
        'sima_xcit_p8',
        xcit_efficient=('Efficient attention', _in_xcit('EfficientAttention')),
        xcit_cosformer=('CosFormer', _in_xcit('CosFormerAttention')),
        xcit_cosformer_2d=('CosFormer, 2-D re-weighting', _in_xcit('CosFormerAttention', reweight=True)),
        sima_xcit_none=('SimA without a norm', dict(_attention('SimAAttention', p=None), class_attention=dict(
            type='SimAClassAttention', p=None))),
        sima_xcit_l2=('SimA, l2 norm', dict(norm_order=2)),
        sima_xcit_no_lpi=('SimA without local patch interaction', dict(lpi=False)),
    ),
)
"""What the papers compare with."""
BACKBONES.update(COMPARED)
