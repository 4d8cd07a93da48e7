"""SimA in the architecture of DeiT, the ordinary ViT with a class token."""

from collections.abc import Sequence
from typing import Optional

import numpy as np
from mmengine.model import ModuleList
from torch import Tensor, nn

from mmsoft.attention.base import Site, build_attention
from mmsoft.layers.blocks import PreNormBlock, apply_block
from mmsoft.layers.embed import PatchConv
from mmsoft.layers.maps import pad_to_multiple, resize_pos_embed, to_map, to_tokens
from mmsoft.registry import MODELS

from .base import Arch, BaseBackbone, ImageSize, side_of, token_parameter, with_token


@MODELS.register_module()
class SimADeiT(BaseBackbone):
    """SimA with the layout of DeiT; with ``attention=dict(type='SoftmaxAttention')`` it is DeiT and loads its files.

    Every output has the stride of the patches, so detectors need :class:`RescalePyramid` behind it. Any input size
    works: images are padded with zeros at the right and bottom to whole patches, maps have ceil(H / 16) rows, and the
    position embedding is resized bicubically. The norm over tokens includes the class token and padding.

    Args:
        arch (str or dict): ``'tiny'``, ``'small'`` (the paper's), ``'base'``; dict(embed_dims, num_heads, depth).
        out_indices (Sequence[int]): Blocks to return, without a norm and without the class token.
        attention (dict): A registered attention and its options. Defaults to SimA's.
        num_heads (int, optional): Heads, instead of those of ``arch``; 1 in 2206.08898, Table 5.
        act_cfg (dict): Activation; ``dict(type='ReLU')`` in 2206.08898, Sec. 4.5.
        img_size (int or Sequence[int]): Side of the square images that the position embedding is made for.
        patch_size (int): Side of a patch.
        **kwargs: See :class:`BaseBackbone`. Stochastic depth grows linearly to its rate, 0.05 in the paper.

    Example:
        >>> maps = SimADeiT('small')(torch.rand(1, 3, 224, 224))
        >>> [tuple(m.shape) for m in maps]
        [(1, 384, 14, 14), (1, 384, 14, 14), (1, 384, 14, 14), (1, 384, 14, 14)]
    """

    published = 'sima_deit'
    unit = 'blocks'
    stem = ('patch_embed', 'cls_token', 'pos_embed')

    arch_settings = dict(
        tiny=dict(embed_dims=192, num_heads=3, depth=12),
        small=dict(embed_dims=384, num_heads=6, depth=12),
        base=dict(embed_dims=768, num_heads=12, depth=12),
    )

    def __init__(
        self,
        arch: Arch = 'small',
        out_indices: Sequence[int] = (3, 5, 7, 11),
        attention: dict = dict(type='SimAAttention'),
        num_heads: Optional[int] = None,
        act_cfg: dict = dict(type='GELU'),
        img_size: ImageSize = 224,
        patch_size: int = 16,
        **kwargs,
    ) -> None:
        super().__init__(arch, out_indices, **kwargs)
        self.patch_size = patch_size
        self.grid = (-(-side_of(img_size) // patch_size),) * 2
        site = Site(self.embed_dims, num_heads or self.arch['num_heads'], self.grid, ratio=2)
        self.patch_embed = PatchConv(self.in_channels, self.embed_dims, patch_size)
        self.cls_token = token_parameter(1, self.embed_dims)
        self.pos_embed = token_parameter(1 + self.grid[0] * self.grid[1], self.embed_dims)
        self.blocks = ModuleList(
            PreNormBlock(build_attention(attention, site), self.embed_dims, self.drop_rate, rate, act_cfg=act_cfg)
            for rate in np.linspace(0, self.drop_path_rate, self.arch['depth']).tolist()[: self.out_indices[-1] + 1]
        )
        self.norm = nn.LayerNorm(self.embed_dims, eps=1e-6) if self.has_cls_token else None
        self.freeze()

    def forward(self, x: Tensor) -> tuple:
        """Maps images (B, in_channels, H, W) to a tuple of maps (B, C, ceil(H / patch), ceil(W / patch))."""
        x = self.patch_embed(pad_to_multiple(x, self.patch_size))
        hw = (x.size(2), x.size(3))
        x = with_token(self.cls_token, to_tokens(x))
        x, maps = x + resize_pos_embed(self.pos_embed, self.grid, hw, mode='bicubic'), []
        for i, block in enumerate(self.blocks):
            x = apply_block(block, x, hw, with_cp=self.with_cp)
            if i in self.out_indices:
                maps.append(to_map(x[:, 1:], hw))
        return self._outputs(maps, None if self.norm is None else self.norm(x[:, 0]))
