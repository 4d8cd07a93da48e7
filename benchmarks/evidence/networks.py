"""The small backbones: ours, some of the OpenMMLab libraries of about their size, and what the papers compare with."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional


class Network(NamedTuple):
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
    dense: dict[str, Any]
    classifier: dict[str, Any] = {}
    rescales: Optional[Sequence[float]] = None
    pooled: bool = False


DIMS, HEADS, DEPTHS = [32, 64, 128, 192], [1, 2, 4, 6], [1, 2, 2, 1]
BLOCKS = dict(embed_dims=96, num_heads=4, depth=4)  # of networks without a pyramid
CLASS_TOKEN = dict(out_type='cls_token')


def _plain(title: str, patch_size: int, cfg: dict[str, Any], **classifier: Any) -> Network:
    """A network of four blocks, whose maps all have the stride of its patches."""
    return Network(
        f'{title}, patch {patch_size}',
        [BLOCKS['embed_dims']] * 4,
        dict(cfg, out_indices=(0, 1, 2, 3)),
        dict(classifier, **CLASS_TOKEN),
        [patch_size / stride for stride in (4, 8, 16, 32)],
    )


NETWORKS = dict(
    **{
        name: Network(
            title,
            DIMS,
            dict(
                type='mmsoft.SOFT',
                img_size=128,
                attention_norm=norm,
                arch=dict(embed_dims=DIMS, num_heads=HEADS, depths=DEPTHS),
            ),
            CLASS_TOKEN,
        )
        for name, title, norm in (('soft', 'SOFT', False), ('soft_norm', 'SOFT-Norm', True))
    },
    **{
        f'sima_xcit_p{patch_size}': _plain(
            'SimA-XCiT',
            patch_size,
            dict(type='mmsoft.SimAXCiT', arch=dict(BLOCKS, patch_size=patch_size, gamma=1.0, norm_tokens=True)),
        )
        for patch_size in (16, 8)
    },
    **{
        f'xcit_p{patch_size}': _plain(
            'XCiT',
            patch_size,
            dict(
                BLOCKS,
                type='mmpretrain.XCiT',
                patch_size=patch_size,
                layer_scale_init_value=1.0,
                tokens_norm=True,
                cls_attn_layers=0,
                out_type='featmap',
            ),
            cls_attn_layers=2,
            out_indices=(-1,),
        )
        for patch_size in (16, 8)
    },
    sima_deit=_plain(
        'SimA-DeiT', 8, dict(type='mmsoft.SimADeiT', arch=BLOCKS, patch_size=8, img_size=128), img_size=64
    ),
    deit=_plain(
        'DeiT',
        8,
        dict(
            type='mmpretrain.VisionTransformer',
            patch_size=8,
            img_size=128,
            out_type='featmap',
            arch=dict(embed_dims=96, num_heads=4, num_layers=4, feedforward_channels=384),
        ),
        img_size=64,
        out_indices=[3],
    ),
    sima_cvt=Network(
        'SimA-CvT',
        DIMS[:3],
        dict(type='mmsoft.SimACvT', arch=dict(embed_dims=DIMS[:3], num_heads=HEADS[:3], depths=[1, 2, 4])),
        CLASS_TOKEN,
    ),
    **{
        name: Network(
            'PVTv2',
            DIMS[:stages],
            dict(  # it always has four stages; those that are not used are small
                type='mmdet.PyramidVisionTransformerV2',
                embed_dims=DIMS[0],
                num_layers=DEPTHS,
                mlp_ratios=[4] * 4,
                num_heads=HEADS[:stages] + [1] * (4 - stages),
                drop_path_rate=0.0,
                out_indices=tuple(range(stages)),
            ),
        )
        for name, stages in (('pvt', 4), ('pvt_3', 3))
    },
    **{
        f'resnet_{width}': Network(
            'ResNet-18',
            [width, 2 * width, 4 * width, 8 * width],
            dict(type='mmpretrain.ResNet', depth=18, stem_channels=width, base_channels=width),
            pooled=True,
        )
        for width in (24, 20)
    },  # the published one has 64
)


_CLASS = dict(class_attention=dict(type='SoftmaxClassAttention'))


def _attention(kind: str, **options: Any) -> dict[str, Any]:
    return dict(attention=dict(type=f'{kind}Attention', **options))


# By the network that they differ from: title, and what is different.
_COMPARED: dict[str, dict[str, tuple[str, dict[str, Any]]]] = dict(
    soft_norm=dict(
        soft_softmax=('Transformer', _attention('Softmax')),
        soft_linformer=('Linformer', _attention('Linformer')),
        soft_performer=('Performer', _attention('Performer')),
        soft_nystromformer=('Nyströmformer', _attention('Nystromformer')),
        soft_gaussian=('exact Gaussian', _attention('Gaussian')),
        soft_gaussian_softmax=('softmax of the exact Gaussian', _attention('Gaussian', normalise='softmax')),
        soft_patches=('SOFT-Norm, patches that do not overlap', dict(embedding='patches')),
        **{
            f'soft_bottleneck_{side**2}': (
                f'SOFT-Norm, {side}×{side} bottleneck tokens at most',
                _attention('SOFT', bottleneck_size=side),
            )
            for side in (6, 7, 8, 9)
        },
        soft_avg_pool=('SOFT-Norm, average pooling', _attention('SOFT', sampling='avg_pool')),
        soft_random=('SOFT-Norm, random tokens', _attention('SOFT', sampling='random')),
        soft_biased=('SOFT-Norm, the first tokens', _attention('SOFT', sampling='biased')),
    ),
    sima_deit=dict(
        soft_deit=('SOFT-Norm without a pyramid', _attention('SOFT')),
        deit_single_head=('DeiT, one head', dict(_attention('Softmax'), num_heads=1)),
        sima_deit_single_head=('SimA-DeiT, one head', dict(num_heads=1)),
        sima_deit_relu=('SimA-DeiT, ReLU', dict(act_cfg=dict(type='ReLU'))),
    ),
    sima_xcit_p8=dict(
        xcit_efficient=('Efficient attention', dict(_attention('Efficient'), **_CLASS)),
        xcit_cosformer=('CosFormer', dict(_attention('CosFormer'), **_CLASS)),
        xcit_cosformer_2d=('CosFormer, 2-D re-weighting', dict(_attention('CosFormer', reweight=True), **_CLASS)),
        **{
            f'sima_xcit_{name}': (
                title,
                dict(_attention('SimA', p=p), class_attention=dict(type='SimAClassAttention', p=p)),
            )
            for name, title, p in (('none', 'SimA without a norm', None), ('l2', 'SimA, l2 norm', 2))
        },
        sima_xcit_no_lpi=('SimA without local patch interaction', dict(lpi=False)),
    ),
)
COMPARED = {
    name: NETWORKS[base]._replace(title=title, dense={**NETWORKS[base].dense, **changes})
    for base, variants in _COMPARED.items()
    for name, (title, changes) in variants.items()
}
"""What the papers compare with."""
NETWORKS.update(COMPARED)
