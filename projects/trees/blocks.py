"""SOFT with two convolutions of PVTv2 (2106.13797): in its feed-forward networks and its patch embeddings."""

from typing import Any

import torch.utils.checkpoint as cp
from mmcv.cnn import build_activation_layer
from mmengine.model import BaseModule
from mmpretrain.models.utils import LayerNorm2d
from torch import Tensor, nn

from mmsoft.attention import Site
from mmsoft.backbones import SOFT
from mmsoft.backbones.base import Arch
from mmsoft.layers.blocks import PostNormBlock
from mmsoft.layers.maps import to_map, to_tokens
from mmsoft.registry import MODELS
from mmsoft.utils import OptionError, check_choice


class MixFFN(BaseModule):
    """Linear map to 4 · C channels, depthwise 3×3 convolution, GELU, and linear map back, as in PVTv2."""

    def __init__(self, embed_dims: int) -> None:
        wide = 4 * embed_dims
        super().__init__(init_cfg=dict(type='Normal', layer='Conv2d', std=(2 / 9) ** 0.5))  # He, with 9 inputs
        self.first = nn.Linear(embed_dims, wide)
        self.conv = nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.act = build_activation_layer(dict(type='GELU'))
        self.last = nn.Linear(wide, embed_dims)
        self.recompute = False  # in the backward pass, for with_cp='ffn'

    def forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """Tokens of shape (B, n, C) that form a map of shape ``hw`` to the same."""
        if self.recompute and x.requires_grad:
            return cp.checkpoint(self._forward, x, hw, use_reentrant=False)
        return self._forward(x, hw)

    def _forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        return self.last(self.act(to_tokens(self.conv(to_map(self.first(x), hw)))))


class MixBlock(PostNormBlock):
    """The SOFT layer with :class:`MixFFN`."""

    def __init__(self, attn: nn.Module, embed_dims: int, drop_rate: float = 0.0) -> None:
        super().__init__(attn, embed_dims, drop_rate)
        self.ffn = MixFFN(embed_dims)

    def forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """Tokens of shape (B, n, C) that form a map of shape ``hw`` to the same."""
        x = self.norm1(x + self.drop(self.attn(x, hw)))
        return self.norm2(x + self.drop(self.ffn(x, hw)))


@MODELS.register_module()
class MixSOFT(SOFT):
    """SOFT with :class:`MixFFN` in its layers. It has three stages at most.

    Args:
        arch (str or dict): See :class:`mmsoft.SOFT`.
        embedding (str): One of SOFT's, or ``'pvt_v2'``: convolutions of 7×7 with stride 4, then 3×3 with stride 2, each
            with LayerNorm and without activation. ``norm_cfg`` has no effect on them.
        **kwargs: See :class:`mmsoft.SOFT`.
    """

    def __init__(self, arch: Arch, embedding: str = 'overlapped', **kwargs: Any) -> None:
        check_choice('embedding', embedding, ('overlapped', 'patches', 'pvt_v2'))
        super().__init__(arch, embedding='overlapped' if embedding == 'pvt_v2' else embedding, **kwargs)
        if embedding == 'pvt_v2':
            sizes = zip(self.stages, [self.in_channels, *self.embed_dims], self.embed_dims, (7, 3, 3), (4, 2, 2))
            for stage, channels, dims, kernel_size, stride in sizes:
                conv = nn.Conv2d(channels, dims, kernel_size, stride, padding=kernel_size // 2)
                stage.embed = nn.Sequential(conv, LayerNorm2d(dims))
            self.freeze()

    def _block(self, stage: int, site: Site, rate: float) -> nn.Module:
        if stage == 3:
            raise OptionError('MixSOFT has three stages at most: a class token has no place in a convolution')
        block = super()._block(stage, site, rate)
        return MixBlock(block.attn, site.dims, block.drop.p)
