"""The backbones that the benchmark runs side by side."""
from functools import partial
from typing import Callable, Dict, NamedTuple, Optional

from mmengine.registry import MODELS
from torch import Tensor, nn

from mmsoft.attention import SOFTAttention
from mmsoft.ops import reference, soft_attention, soft_norm_attention
from mmsoft.ops.precision import at_least_float32
from .parity_weights import load_parity_weights


class Contender(NamedTuple):
    """A backbone in the benchmark.

    Attributes:
        label: Its name in tables and plots.
        family: What shares a colour in the plots.
        backbone: Its config, type and scope included.
        rival: Key of the backbone that it is held against.
        dense: Whether SOFT's attention is replaced by the published arithmetic, see :func:`as_published`.
    """
    label: str
    family: str
    backbone: dict
    rival: Optional[str] = None
    dense: bool = False


def _soft(label: str, arch, rival: Optional[str] = None, dense: bool = False, **options) -> Contender:
    family = 'SOFT as published' if dense else 'SOFT, fixed bottleneck' if options.get('bottleneck') else 'SOFT'
    return Contender(label, family, dict(type='mmsoft.SOFT', arch=arch, **options), rival, dense)


_NANO = dict(embed_dims=[32, 64, 64, 64], num_heads=[1, 2, 2, 2], depths=[1, 1, 1, 1])

CONTENDERS: Dict[str, Contender] = {
    **{
        key: contender
        for arch in ('tiny', 'small') for name, rival in ((arch.capitalize(), f'pvt_{arch}'), )
        for key, contender in {
            f'soft_{arch}_published': _soft(f'SOFT-{name} as published', arch, rival, True, attention_norm=False),
            f'soft_{arch}': _soft(f'SOFT-{name}', arch, rival, attention_norm=False),
            f'soft_norm_{arch}': _soft(f'SOFT-Norm-{name}', arch, rival, attention_norm=True),
            f'soft_norm_{arch}_fixed': _soft(
                f'SOFT-Norm-{name}, 7×7', arch, rival, attention_norm=True, bottleneck='fixed'),
        }.items()
    },
    'sima_xcit_small': Contender('SimA-XCiT-S12/16', 'SimA',
                                 dict(type='mmsoft.SimAXCiT', arch='small-12-p16', out_type='cls_token'), 'xcit_small'),
    'xcit_small': Contender('XCiT-S12/16', 'XCiT',
                            dict(type='mmpretrain.XCiT', embed_dims=384, depth=12, num_heads=8, tokens_norm=True)),
    'pvt_tiny': Contender('PVT-Tiny', 'PVT', dict(type='mmdet.PyramidVisionTransformer', num_layers=[2, 2, 2, 2])),
    'pvt_small': Contender('PVT-Small', 'PVT', dict(type='mmdet.PyramidVisionTransformer', num_layers=[3, 4, 6, 3])),
    'swin_tiny': Contender('Swin-T', 'Swin', dict(type='mmdet.SwinTransformer')),
    'resnet50': Contender('ResNet-50', 'ResNet', dict(type='mmdet.ResNet', depth=50)),
}

# Small enough for a test: left out unless asked for.
NANO_CONTENDERS: Dict[str, Contender] = {
    'soft_nano_published': _soft('SOFT-Nano as published', _NANO, dense=True),
    'soft_nano': _soft('SOFT-Nano', _NANO, 'soft_nano_published'),
}
ENTRANTS: Dict[str, Contender] = {**CONTENDERS, **NANO_CONTENDERS}


def build_contender(contender: Contender) -> nn.Module:
    """Builds a backbone: SOFT with the parity weights, on which its inverse is as hard as in the fixtures."""
    model = MODELS.build(contender.backbone)
    if contender.backbone['type'] == 'mmsoft.SOFT':
        load_parity_weights(model)
    return as_published(model) if contender.dense else model


def as_published(model: nn.Module) -> nn.Module:
    """Replaces SOFT's attention by the published arithmetic: P held whole, Newton's steps, (Pᵀ · V) · (P · v)."""
    for module in model.modules():
        if isinstance(module, SOFTAttention):
            module.product = partial(_attend_densely, _DENSE[module.product])
    return model


def _attend_densely(attention: Callable, q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int, inverse: str):
    return attention(q, bottleneck, v, iterations)


_DENSE = {
    soft_attention: at_least_float32(reference.soft_attention),
    soft_norm_attention: at_least_float32(reference.soft_norm_attention),
}
