"""The backbones that the benchmark runs side by side, their weights, and the pictures that they see."""
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from matplotlib import cbook, image
from mmengine.logging import MMLogger
from mmengine.registry import MODELS
from torch import Tensor, nn

from .published import PublishedSOFTAttention


class Contender(NamedTuple):
    """A backbone in the benchmark.

    Attributes:
        label: Its name in tables and plots.
        backbone: Its config, type and scope included.
        rival: Key of the backbone that it is held against.
    """
    label: str
    backbone: dict
    rival: Optional[str] = None

    def conditions(self, checkpoint: Optional[str] = None) -> List[Tuple[str, str]]:
        """Weights and pictures to measure it with: of all but SOFT, whose inverse might depend on them, one of each."""
        if self.backbone['type'] != 'mmsoft.SOFT' or 'published' in self.label:
            return [('fresh', 'noise')]
        return [(weights, picture) for weights in (*WEIGHTS, checkpoint) if weights for picture in PICTURES]


def _soft(label: str, arch, rival: Optional[str] = None, **options) -> Contender:
    return Contender(label, dict(type='mmsoft.SOFT', arch=arch, **options), rival)


_NANO = dict(embed_dims=[32, 96, 160, 256], num_heads=[1, 3, 5, 8], depths=[1, 2, 2, 1])

CONTENDERS: Dict[str, Contender] = dict(
    soft_tiny=_soft('SOFT-Tiny', 'tiny', 'pvt_tiny', attention_norm=False),
    soft_norm_tiny=_soft('SOFT-Norm-Tiny', 'tiny', 'pvt_tiny', attention_norm=True),
    soft_small=_soft('SOFT-Small', 'small', 'pvt_small', attention_norm=False),
    soft_norm_small=_soft('SOFT-Norm-Small', 'small', 'pvt_small', attention_norm=True),
    soft_norm_small_fixed=_soft(
        'SOFT-Norm-Small, 7×7', 'small', 'pvt_small', bottleneck='fixed'),
    soft_small_published=_soft(
        'SOFT-Small as published', 'small', 'pvt_small', attention=dict(type=PublishedSOFTAttention, norm=False)),
    soft_norm_nano=_soft('SOFT-Norm-Nano', _NANO, 'pvt_tiny', attention_norm=True),
    sima_xcit_small=Contender('SimA-XCiT-S12/16',
                              dict(type='mmsoft.SimAXCiT', arch='small-12-p16', out_type='cls_token'), 'xcit_small'),
    xcit_small=Contender('XCiT-S12/16',
                         dict(type='mmpretrain.XCiT', embed_dims=384, depth=12, num_heads=8, tokens_norm=True)),
    pvt_tiny=Contender('PVT-Tiny', dict(type='mmdet.PyramidVisionTransformer', num_layers=[2, 2, 2, 2])),
    pvt_small=Contender('PVT-Small', dict(type='mmdet.PyramidVisionTransformer', num_layers=[3, 4, 6, 3])),
    swin_tiny=Contender('Swin-T', dict(type='mmdet.SwinTransformer')),
    resnet50=Contender('ResNet-50', dict(type='mmdet.ResNet', depth=50)),
)


def build_contender(model: str, weights: str = 'fresh', **options) -> nn.Module:
    """Builds a backbone.

    Args:
        model (str): Key of :data:`CONTENDERS`.
        weights (str): Key of :data:`WEIGHTS`, or else a file to load, whose names have to fit.
        **options: Of the backbone's config.

    Returns:
        nn.Module: In training mode.
    """
    cfg = dict(CONTENDERS[model].backbone, **options)
    if weights not in WEIGHTS:
        cfg['init_cfg'] = dict(type='Pretrained', checkpoint=weights)
    MMLogger.get_instance('benchmark', log_level='ERROR')  # of what mmengine says of initial weights
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
PICTURES: Dict[str, Callable[[int, int, int], Tensor]] = dict(noise=_noise, photograph=_photograph)
