"""SOFT with a depthwise convolution in its feed-forward networks, as PVTv2 has (2106.13797)."""

import torch.utils.checkpoint as cp
from mmcv.cnn import build_activation_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmsoft.attention import Site
from mmsoft.backbones import SOFT
from mmsoft.layers.blocks import PostNormBlock
from mmsoft.layers.maps import to_map, to_tokens
from mmsoft.registry import MODELS
from mmsoft.utils import OptionError


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
    """SOFT with :class:`MixFFN` in its layers; arguments are SOFT's. It has three stages at most."""

    def _block(self, stage: int, site: Site, rate: float) -> nn.Module:
        if stage == 3:
            raise OptionError('MixSOFT has three stages at most: a class token has no place in a convolution')
        block = super()._block(stage, site, rate)
        return MixBlock(block.attn, site.dims, block.drop.p)
