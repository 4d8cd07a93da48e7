"""SimA in the body of XCiT: attention at one stride, and a class token behind it."""
from typing import List, Optional, Sequence, Tuple, Union

import torch
from mmengine.model import ModuleList
from torch import Tensor, nn

from mmsoft.layers import (ClassAttentionBlock, ConvPatchEmbed, FourierPositionEncoding, XCiTBlock, apply_block,
                           extent_mask, image_extent, to_map, to_tokens)
from mmsoft.registry import MODELS
from .sima import SimABackbone, token_parameter


@MODELS.register_module()
class SimAXCiT(SimABackbone):
    """SimA with the layout of XCiT.

    Every output has the stride of the patches, so detectors put :class:`RescalePyramid` behind it. Any input size
    works: the convolutions that make the patches give ceil(H / patch) rows, nothing is padded or cropped.

    In a batch of images padded to one size, the padding enters the norm over all tokens and every image's result
    depends on how large the others are. Published networks are trained so; ``mask_padding`` takes the padding out.

    Args:
        arch (str or dict): ``'{nano-12, tiny-12, tiny-20, tiny-24, small-12, small-24, medium-24, large-24}-{p16,
            p8}'``, or a dict with ``embed_dims``, ``num_heads``, ``depth``, ``patch_size``, ``gamma`` (at the start
            of training) and ``norm_tokens`` (see :class:`ClassAttentionBlock`).
        out_indices (Sequence[int]): Blocks to return, without a norm. Blocks behind the last one asked for are not
            built, so a network of 24 blocks wants others than the default: (7, 11, 15, 23) in XCiT's detectors.
        out_type (str): ``'featmap'``, or ``'cls_token'`` for classifiers, which adds the class attention.
        with_cls_token (bool): With ``'featmap'``, make the last block's output a pair (map, class token).
        frozen_stages (int): 0 freezes patches and position encoding, k also the first k blocks, all of them also the
            class attention. -1 freezes nothing.
        norm_eval (bool): Keep BatchNorm in eval mode while training.
        with_cp (bool): Recompute each block in the backward pass to save memory.
        drop_rate (float): Elementwise dropout of the residual branches.
        drop_path_rate (float): Stochastic depth, the same for all blocks as published; 0.05 in the paper.
        num_heads (int, optional): Instead of the heads of ``arch``; 1 is the paper's ablation.
        norm_order (int): 1, or 2 for the paper's ablation with the l2 norm.
        lpi (bool): False takes the local patch interaction out, the paper's ablation.
        act_cfg (dict): Activation; ``dict(type='ReLU')`` is the paper's ablation.
        mask_padding (bool): Find each image's zero padding (see :func:`mmsoft.layers.image_extent`) and keep it out
            of every layer: in eval mode, an image gives the same as alone, and zeros where it is padded.
        in_channels (int): Channels of the image.
        norm_cfg (dict): Norm of the convolutions. Defaults to BatchNorm; published networks train with SyncBN.
        init_cfg (dict or list[dict], optional): See :class:`BaseBackbone`.

    Raises:
        ValueError: If an argument names something that does not exist, or ``arch`` is incomplete.

    Example:
        >>> maps = SimAXCiT('small-12-p16')(torch.rand(1, 3, 224, 224))
        >>> [tuple(m.shape) for m in maps]
        [(1, 384, 14, 14), (1, 384, 14, 14), (1, 384, 14, 14), (1, 384, 14, 14)]
    """

    published = 'sima_xcit'

    # XCiT starts γ at 1 for 12 blocks and at 1e-5 for 24; that of the paper's 20 blocks is not published.
    arch_settings = {
        f'{name}-{depth}-p{patch_size}': dict(
            embed_dims=embed_dims,
            num_heads=num_heads,
            depth=depth,
            patch_size=patch_size,
            gamma=1. if depth == 12 else 1e-5,
            norm_tokens=name != 'nano')
        for patch_size in (16, 8)
        for name, depth, embed_dims, num_heads in (
            ('nano', 12, 128, 4),
            ('tiny', 12, 192, 4),
            ('tiny', 20, 192, 4),
            ('tiny', 24, 192, 4),
            ('small', 12, 384, 8),
            ('small', 24, 384, 8),
            ('medium', 24, 512, 8),
            ('large', 24, 768, 16),
        )
    }

    def __init__(self,
                 arch: Union[str, dict] = 'small-12-p16',
                 out_indices: Sequence[int] = (3, 5, 7, 11),
                 out_type: str = 'featmap',
                 with_cls_token: bool = False,
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 with_cp: bool = False,
                 drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 num_heads: Optional[int] = None,
                 norm_order: int = 1,
                 lpi: bool = True,
                 act_cfg: dict = dict(type='GELU'),
                 mask_padding: bool = False,
                 in_channels: int = 3,
                 norm_cfg: dict = dict(type='BN'),
                 init_cfg: Optional[Union[dict, List[dict]]] = None) -> None:
        self.arch = self.read_arch(arch, num_heads)
        self.embed_dims, depth = self.arch['embed_dims'], self.arch['depth']
        super().__init__(depth, (-1, ) if out_type == 'cls_token' else out_indices, out_type, with_cls_token,
                         frozen_stages, norm_eval, with_cp, init_cfg)
        self.mask_padding = mask_padding
        block_cfg = dict(num_heads=self.arch['num_heads'], gamma=self.arch['gamma'], p=norm_order, act_cfg=act_cfg)

        self.patch_embed = ConvPatchEmbed(in_channels, self.embed_dims, self.arch['patch_size'], norm_cfg)
        self.pos_encoding = FourierPositionEncoding(self.embed_dims)
        self.blocks = ModuleList(
            XCiTBlock(
                self.embed_dims,
                lpi=lpi,
                drop_rate=drop_rate,
                drop_path_rate=drop_path_rate,
                norm_cfg=norm_cfg,
                **block_cfg) for _ in range(self.out_indices[-1] + 1))

        self.has_cls_token = len(self.blocks) == depth and (out_type == 'cls_token' or with_cls_token)
        if self.has_cls_token:
            self.cls_token = token_parameter(1, self.embed_dims)
            self.cls_blocks = ModuleList(
                ClassAttentionBlock(self.embed_dims, norm_tokens=self.arch['norm_tokens'], **block_cfg)
                for _ in range(2))
            self.norm = nn.LayerNorm(self.embed_dims, eps=1e-6)
        self.freeze()

    def forward(self, x: Tensor) -> tuple:
        """Images of shape (B, 3, H, W) to a tuple of maps (B, C, ceil(H / patch), ceil(W / patch))."""
        x, extent = self.patch_embed(x, image_extent(x) if self.mask_padding else None)
        hw = x.shape[-2:]
        mask = None if extent is None else extent_mask(extent, hw)
        x = to_tokens(x + self.pos_encoding(hw, extent)).contiguous()
        outs = []
        for i, block in enumerate(self.blocks):
            x = apply_block(block, x, hw, mask, with_cp=self.with_cp)
            if i in self.out_indices:
                out = to_map(x, hw)
                outs.append((out if mask is None else out * mask).contiguous())
        if self.has_cls_token:
            cls = self._attend_class(x, mask)
            return (cls, ) if self.out_type == 'cls_token' else (*outs[:-1], (outs[-1], cls))
        return tuple(outs)

    def get_layer_depth(self, param_name: str, prefix: str = 'backbone.') -> Tuple[int, int]:
        """Layer of a parameter, for layer-wise learning-rate decay; the patches are 0, each block is a layer."""
        depth = self.arch['depth']
        first_layers = dict(patch_embed=0, pos_encoding=0, blocks=1, cls_token=depth + 1, cls_blocks=depth + 1)
        return self._layer_depth(param_name, prefix, first_layers, depth + 2 + 2 * self.has_cls_token)

    def _attend_class(self, x: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Class token of shape (B, C), after the final norm, from the tokens of the last block."""
        x = torch.cat([self.cls_token.to(x.dtype).expand(x.size(0), -1, -1), x], dim=1)
        if mask is not None:
            mask = torch.cat([mask.new_ones(x.size(0), 1), mask.flatten(1)], dim=1)
        for block in self.cls_blocks:
            x = apply_block(block, x, mask, with_cp=self.with_cp)
        return self.norm(x[:, 0])

    def _frozen_modules(self):
        if self.frozen_stages >= 0:
            yield from (self.patch_embed, self.pos_encoding)
            yield from self.blocks[:self.frozen_stages]
            if self.has_cls_token and self.frozen_stages >= len(self.blocks):
                yield from (self.cls_token, self.cls_blocks, self.norm)
