"""The backbones that are measured side by side, their weights, and the images that they see."""
from functools import partial
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from matplotlib import cbook, image
from mmcv.cnn import fuse_conv_bn
from mmengine.config import Config, DictAction
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmsoft.attention import MultiheadAttention, Site, SOFTAttention
from mmsoft.ops import gaussian_kernel, newton_inverse
from mmsoft.ops.soft import RIDGE, soft_alpha, soft_norm_alpha
from mmsoft.utils import UsageError
from .common import be_quiet


class PublishedSOFTAttention(SOFTAttention):
    """SOFT's attention in the arithmetic of the published networks: Newton steps, and all matrices held whole."""

    def __init__(self, site: Site, norm: bool = True) -> None:
        super().__init__(site, norm)
        self.product = partial(_attend, norm=norm)


def _attend(q: Tensor, bottleneck: Tensor, v: Tensor, norm: bool, iterations: int = 20, **options) -> Tensor:
    """(B, h, n, d), (B, h, m, d) and (B, h, n, c) to (B, h, n, c)."""
    p, a = gaussian_kernel(bottleneck, q), gaussian_kernel(bottleneck, ridge=0. if norm else RIDGE)
    if norm:
        rows = a.sum(-1, keepdim=True)
        scale = rows.rsqrt()
        inverse = scale * newton_inverse(a, soft_norm_alpha(a, rows), iterations) * scale.transpose(-2, -1)
    else:
        inverse = newton_inverse(a, soft_alpha(a, RIDGE), iterations)
    return p.transpose(-2, -1) @ inverse @ (p @ v)


class UnfusedAttention(MultiheadAttention):
    """Softmax attention in three steps, as networks had it before fused kernels."""

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`MultiheadAttention`."""
        return (q @ k.transpose(-2, -1) * q.size(-1)**-0.5).softmax(-1) @ v


class Contender(NamedTuple):
    """A backbone that is measured.

    Attributes:
        label: Its name in tables and plots.
        backbone: Its config with type and scope.
        rival: Key of the backbone that it is compared with.
    """
    label: str
    backbone: dict
    rival: Optional[str] = None

    def conditions(self, checkpoint: Optional[str] = None) -> List[Tuple[str, str]]:
        """Pairs of weights and image. Only the cost of SOFT's inverse might depend on them; others have one pair."""
        if self.backbone['type'] != 'mmsoft.SOFT' or 'published' in self.label:
            return [('fresh', 'noise')]
        return [(weights, image) for weights in (*WEIGHTS, checkpoint) if weights for image in IMAGES]


def _soft(label: str, arch, rival: str, norm: bool = True, **attention) -> Contender:
    attention = dict(dict(type='SOFTAttention', norm=norm), **attention)
    return Contender(label, dict(type='mmsoft.SOFT', arch=arch, attention=attention), rival)


_NANO = dict(embed_dims=[32, 96, 160, 256], num_heads=[1, 3, 5, 8], depths=[1, 2, 2, 1])

CONTENDERS: Dict[str, Contender] = dict(
    soft_tiny=_soft('SOFT-Tiny', 'tiny', 'pvt_tiny', norm=False),
    soft_norm_tiny=_soft('SOFT-Norm-Tiny', 'tiny', 'pvt_tiny'),
    soft_small=_soft('SOFT-Small', 'small', 'pvt_small', norm=False),
    soft_norm_small=_soft('SOFT-Norm-Small', 'small', 'pvt_small'),
    soft_norm_small_7x7=_soft('SOFT-Norm-Small, 7×7', 'small', 'pvt_small', bottleneck_size=7),
    soft_small_published=_soft(
        'SOFT-Small as published', 'small', 'pvt_small', norm=False, type=PublishedSOFTAttention),
    soft_norm_nano=_soft('SOFT-Norm-Nano', _NANO, 'pvt_tiny'),
    sima_xcit_small=Contender('SimA-XCiT-S12/16',
                              dict(type='mmsoft.SimAXCiT', arch='small-12-p16', out_type='cls_token'), 'xcit_small'),
    xcit_small=Contender('XCiT-S12/16',
                         dict(type='mmpretrain.XCiT', embed_dims=384, depth=12, num_heads=8, tokens_norm=True)),
    pvt_tiny=Contender('PVT-Tiny', dict(type='mmdet.PyramidVisionTransformer', num_layers=[2, 2, 2, 2])),
    pvt_small=Contender('PVT-Small', dict(type='mmdet.PyramidVisionTransformer', num_layers=[3, 4, 6, 3])),
    swin_tiny=Contender('Swin-T', dict(type='mmdet.SwinTransformer')),
    resnet50=Contender('ResNet-50', dict(type='mmdet.ResNet', depth=50)),
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
    for path, value in (option.split('=', 1) for option in options):
        cfg = Config(dict(backbone=found.backbone))
        cfg.merge_from_dict({f'backbone.{path}': DictAction._parse_iterable(value)})
        label = f'{found.label}, {path.rpartition(".")[2]}={value}'
        found = found._replace(label=label, backbone=cfg.backbone.to_dict())
    return found


def build_contender(model: str, weights: str = 'fresh', **options) -> nn.Module:
    """Builds a backbone.

    Args:
        model (str): See :func:`contender`.
        weights (str): Key of :data:`WEIGHTS`, or else a file to load, whose names have to fit.
        **options: Of the backbone's config.

    Returns:
        nn.Module: In training mode.
    """
    cfg = dict(contender(model).backbone, **options)
    if weights not in WEIGHTS:
        cfg['init_cfg'] = dict(type='Pretrained', checkpoint=weights)
    be_quiet()
    network = MODELS.build(cfg)
    network.init_weights()
    WEIGHTS.get(weights, lambda model: None)(network)
    return network


def _bottleneck_scale(gamma: float) -> Callable[[nn.Module], None]:
    """Sets γ of the bottleneck's LayerNorm: the smaller it is, the more the bottleneck tokens resemble each other."""

    def scale(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if name.endswith('bottleneck.norm.weight'):
                nn.init.constant_(parameter, gamma)

    return scale


def _noise(batch: int, height: int, width: int) -> Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(0))


def _photograph(batch: int, height: int, width: int) -> Tensor:
    """The portrait that comes with matplotlib, resized to cover the image as a detector resizes, normalised."""
    with cbook.get_sample_data('grace_hopper.jpg') as file:
        photograph = torch.from_numpy(image.imread(file, format='jpg').copy()).permute(2, 0, 1)[None].float() / 255
    scale = max(height / photograph.size(2), width / photograph.size(3))
    size = [max(side, round(scale * have)) for side, have in zip((height, width), photograph.shape[2:])]
    photograph = F.interpolate(photograph, size, mode='bilinear', antialias=True)[..., :height, :width]
    photograph = (photograph - photograph.mean((2, 3), True)) / photograph.std((2, 3), keepdim=True)
    return photograph.repeat(batch, 1, 1, 1)


# Training on ImageNet takes γ from 1 to 0.82–1.02; the published networks' parity fixtures have 0.3.
WEIGHTS: Dict[str, Callable[[nn.Module], None]] = dict(
    fresh=_bottleneck_scale(1.), trained=_bottleneck_scale(0.9), alike=_bottleneck_scale(0.3))
IMAGES: Dict[str, Callable[[int, int, int], Tensor]] = dict(noise=_noise, photograph=_photograph)


def fold_norms(network: nn.Module) -> nn.Module:
    """Folds each BatchNorm into the convolution before it, as for deployment."""
    parts = {type(module).__name__ for module in network.modules()}
    if 'LPI' not in parts:
        return fuse_conv_bn(network)
    if type(network).__name__ != 'LPI':  # mmpretrain's XCiT: mmcv would fold across the activation in it
        for name, child in network.named_children():
            setattr(network, name, fold_norms(child))
    return network
