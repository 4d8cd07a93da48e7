"""The backbones that are measured side by side."""

from functools import partial
from typing import NamedTuple, Optional

from mmcv.cnn import fuse_conv_bn
from mmengine.config import Config, DictAction
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmsoft.attention import MultiheadAttention, Site, SOFTAttention
from mmsoft.ops import gaussian_kernel, inverse_product, newton_inverse
from mmsoft.ops.soft import RIDGE, soft_alpha, soft_norm_alpha
from mmsoft.utils import UsageError

from .common import be_quiet


class PublishedSOFTAttention(SOFTAttention):
    """SOFT's attention in the arithmetic of the published networks: Newton steps, and all matrices held whole."""

    def __init__(self, site: Site, closed_gradient: bool = False) -> None:
        super().__init__(site, norm=False)
        self.product = partial(published_attention, closed_gradient=closed_gradient)


def published_attention(
    q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int = 20, norm: bool = False, closed_gradient: bool = False
) -> Tensor:
    """SOFT, or SOFT-Norm with ``norm``, by Newton steps: (B, h, n, d), (B, h, m, d), (B, h, n, c) to (B, h, n, c)."""
    p, a = gaussian_kernel(bottleneck, q), gaussian_kernel(bottleneck, ridge=0 if norm else RIDGE)
    sums = a.sum(-1, keepdim=True)
    alpha = soft_norm_alpha(a, sums) if norm else soft_alpha(sums - RIDGE)
    scaled = sums.rsqrt() * p if norm else p
    if closed_gradient:
        return scaled.mT @ inverse_product(a, scaled @ v, alpha.detach(), iterations)
    return scaled.mT @ newton_inverse(a, alpha, iterations) @ (scaled @ v)


class UnfusedAttention(MultiheadAttention):
    """Softmax attention in three steps, as networks had it before fused kernels."""

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`MultiheadAttention`."""
        return (q @ k.transpose(-2, -1) * q.size(-1) ** -0.5).softmax(-1) @ v


class Contender(NamedTuple):
    """A backbone that is measured.

    Attributes:
        label: Its name in tables.
        backbone: Its config with type and scope.
        rival: Key of the backbone that it is compared with.
    """

    label: str
    backbone: dict
    rival: Optional[str] = None


def _soft(label: str, arch, rival: Optional[str] = None, **attention) -> Contender:
    attention = dict(dict(type='SOFTAttention'), **attention)
    return Contender(label, dict(type='mmsoft.SOFT', arch=arch, attention=attention), rival)


_NANO = dict(embed_dims=[32, 96, 160, 256], num_heads=[1, 3, 5, 8], depths=[1, 2, 2, 1])
# Of the papers' ablations, all in SOFT-Tiny.
ABLATIONS: dict[str, Contender] = dict(
    tiny_softmax=_soft('Transformer', 'tiny', type='SoftmaxAttention'),
    tiny_linformer=_soft('Linformer', 'tiny', type='LinformerAttention'),
    tiny_performer=_soft('Performer', 'tiny', type='PerformerAttention'),
    tiny_nystromformer=_soft('Nyströmformer', 'tiny', type='NystromformerAttention'),
    tiny_soft=_soft('SOFT', 'tiny', norm=False),
    tiny_autograd=_soft('SOFT as published, autograd through 20 steps', 'tiny', type=PublishedSOFTAttention),
    tiny_closed=_soft(
        'SOFT as published, closed-form gradient', 'tiny', type=PublishedSOFTAttention, closed_gradient=True
    ),
    **{
        f'tiny_bottleneck_{side**2}': _soft(f'SOFT-Norm, {side}×{side} tokens', 'tiny', bottleneck_size=side)
        for side in (6, 7, 8, 9)
    },
)
CONTENDERS: dict[str, Contender] = dict(
    soft_tiny=_soft('SOFT-Tiny', 'tiny', 'pvt_tiny', norm=False),
    soft_norm_tiny=_soft('SOFT-Norm-Tiny', 'tiny', 'pvt_tiny'),
    soft_small=_soft('SOFT-Small', 'small', 'pvt_small', norm=False),
    soft_norm_small=_soft('SOFT-Norm-Small', 'small', 'pvt_small'),
    **{
        f'soft_norm_{size}_{limit}': _soft(
            f'SOFT-Norm-{size.title()}, at most {limit}', size, f'pvt_{size}', bottleneck_limit=limit
        )
        for size in ('tiny', 'small')
        for limit in (400, 100)
    },
    soft_norm_nano=_soft('SOFT-Norm-Nano', _NANO, 'pvt_tiny'),
    sima_xcit_small=Contender(
        'SimA-XCiT-S12/16', dict(type='mmsoft.SimAXCiT', arch='small-12-p16', out_type='cls_token'), 'xcit_small'
    ),
    xcit_small=Contender(
        'XCiT-S12/16', dict(type='mmpretrain.XCiT', embed_dims=384, depth=12, num_heads=8, tokens_norm=True)
    ),
    pvt_tiny=Contender('PVT-Tiny', dict(type='mmdet.PyramidVisionTransformer', num_layers=[2, 2, 2, 2])),
    pvt_small=Contender('PVT-Small', dict(type='mmdet.PyramidVisionTransformer', num_layers=[3, 4, 6, 3])),
    swin_tiny=Contender('Swin-T', dict(type='mmdet.SwinTransformer')),
    resnet50=Contender('ResNet-50', dict(type='mmdet.ResNet', depth=50)),
    **ABLATIONS,
)


def contender(name: str) -> Contender:
    """A contender by its key, with options of its backbone behind it or not.

    Args:
        name (str): Such as ``'soft_norm_small'`` or ``'soft_norm_small:attention.bottleneck_limit=100'``; more options
            are separated by further colons.

    Raises:
        UsageError: If there is no such contender, or an option is not ``KEY=VALUE``.
    """
    key, *options = name.split(':')
    if key not in CONTENDERS:
        raise UsageError(f'There is no contender {key}; choose from {", ".join(CONTENDERS)}.')
    if not all('=' in option for option in options):
        raise UsageError(f'{name} has an option that is not KEY=VALUE, as in {key}:attention.bottleneck_size=7.')
    found = CONTENDERS[key]
    cfg = Config(found.backbone)
    for path, value in (option.split('=', 1) for option in options):
        cfg.merge_from_dict({path: DictAction._parse_iterable(value)})
        found = found._replace(label=f'{found.label}, {path.rpartition(".")[2]}={value}', backbone=cfg.to_dict())
    return found


def build_contender(model: str) -> nn.Module:
    """Builds a backbone with random weights, in training mode; see :func:`contender`."""
    be_quiet()
    network = MODELS.build(contender(model).backbone)
    network.init_weights()
    return network


def check_contender(model: str) -> None:
    """Raises UsageError if a contender cannot be built."""
    try:
        build_contender(model)
    except UsageError:
        raise
    except Exception as error:  # whatever a backbone's class makes of its options
        raise UsageError(f'{model} cannot be built ({error}).') from error


def fold_norms(network: nn.Module) -> nn.Module:
    """Folds each BatchNorm into the convolution before it, as for deployment."""
    parts = {type(module).__name__ for module in network.modules()}
    if 'LPI' not in parts:
        return fuse_conv_bn(network)
    if type(network).__name__ != 'LPI':  # mmpretrain's XCiT: mmcv would fold across the activation in it
        for name, child in network.named_children():
            setattr(network, name, fold_norms(child))
    return network
