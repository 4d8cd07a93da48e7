"""SimA in the body of DeiT, the ordinary ViT with a class token."""
from functools import partial
from typing import List, Optional, Sequence, Tuple, Union

import torch
from mmengine.model import ModuleList
from torch import Tensor, nn

from mmsoft.layers import (MultiheadAttention, PosEmbedResizer, PreNormBlock, apply_block, pad_to_multiple, to_map,
                           to_tokens)
from mmsoft.ops import l1_attention
from mmsoft.registry import MODELS
from .sima import SimABackbone, token_parameter


@MODELS.register_module()
class SimADeiT(SimABackbone):
    """SimA with the layout of DeiT; DeiT's own softmax files fit and are a start for fine-tuning.

    Every output has the stride of the patches, so detectors put :class:`RescalePyramid` behind it. Any input size
    works: images are padded with zeros at the right and bottom to whole patches, maps have ceil(H / 16) rows, and the
    position embedding is resized bicubically. The class token takes part in the norm over tokens; so does padding.

    Args:
        arch (str or dict): ``'tiny'``, ``'small'`` (the paper's), ``'base'``, or a dict with ``embed_dims``,
            ``num_heads`` and ``depth``.
        out_indices (Sequence[int]): Blocks to return, without a norm and without the class token. Blocks behind the
            last one asked for are not built.
        out_type (str): ``'featmap'``, or ``'cls_token'`` for classifiers.
        with_cls_token (bool): With ``'featmap'``, make the last block's output a pair (map, class token), the token
            after the final norm.
        frozen_stages (int): 0 freezes patches, class token and position embedding, k also the first k blocks, all of
            them also the final norm. -1 freezes nothing.
        norm_eval (bool): Without effect: there is no BatchNorm.
        with_cp (bool): Recompute each block in the backward pass to save memory.
        drop_rate (float): Elementwise dropout of the residual branches.
        drop_path_rate (float): Stochastic depth, growing linearly to this rate at the last block; 0.05 in the paper.
        num_heads (int, optional): Instead of the heads of ``arch``; 1 is the paper's ablation.
        norm_order (int): 1, or 2 for the paper's ablation with the l2 norm.
        act_cfg (dict): Activation; ``dict(type='ReLU')`` is the paper's ablation.
        in_channels (int): Channels of the image.
        img_size (int): Side of the images that the position embedding is made for.
        patch_size (int): Side of a patch.
        init_cfg (dict or list[dict], optional): See :class:`BaseBackbone`.

    Raises:
        ValueError: If an argument names something that does not exist, or ``arch`` is incomplete.

    Example:
        >>> maps = SimADeiT('small')(torch.rand(1, 3, 224, 224))
        >>> [tuple(m.shape) for m in maps]
        [(1, 384, 14, 14), (1, 384, 14, 14), (1, 384, 14, 14), (1, 384, 14, 14)]
    """

    published = 'sima_deit'

    arch_settings = dict(
        tiny=dict(embed_dims=192, num_heads=3, depth=12),
        small=dict(embed_dims=384, num_heads=6, depth=12),
        base=dict(embed_dims=768, num_heads=12, depth=12),
    )

    def __init__(self,
                 arch: Union[str, dict] = 'small',
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
                 act_cfg: dict = dict(type='GELU'),
                 in_channels: int = 3,
                 img_size: int = 224,
                 patch_size: int = 16,
                 init_cfg: Optional[Union[dict, List[dict]]] = None) -> None:
        self.arch = self.read_arch(arch, num_heads)
        self.embed_dims, depth = self.arch['embed_dims'], self.arch['depth']
        super().__init__(depth, (-1, ) if out_type == 'cls_token' else out_indices, out_type, with_cls_token,
                         frozen_stages, norm_eval, with_cp, init_cfg)
        self.patch_size = patch_size
        grid = -(-img_size // patch_size)
        self.resize_pos_embed = PosEmbedResizer((grid, grid), mode='bicubic')

        self.patch_embed = nn.Conv2d(in_channels, self.embed_dims, patch_size, patch_size)
        self.cls_token = token_parameter(1, self.embed_dims)
        self.pos_embed = token_parameter(1 + grid * grid, self.embed_dims)
        drop_path_rates = torch.linspace(0, drop_path_rate, depth).tolist()
        self.blocks = ModuleList(
            PreNormBlock(
                MultiheadAttention(self.embed_dims, self.arch['num_heads'], partial(l1_attention, p=norm_order)),
                self.embed_dims,
                drop_rate,
                rate,
                act_cfg=act_cfg) for rate in drop_path_rates[:self.out_indices[-1] + 1])

        self.has_cls_token = len(self.blocks) == depth and (out_type == 'cls_token' or with_cls_token)
        self.norm = nn.LayerNorm(self.embed_dims, eps=1e-6) if self.has_cls_token else None
        self.freeze()

    def forward(self, x: Tensor) -> tuple:
        """Images of shape (B, 3, H, W) to a tuple of maps (B, C, ceil(H / patch), ceil(W / patch))."""
        x = self.patch_embed(pad_to_multiple(x, self.patch_size))
        hw = x.shape[-2:]
        x = to_tokens(x)
        x = torch.cat([self.cls_token.to(x.dtype).expand(x.size(0), -1, -1), x], dim=1)
        x = x + self.resize_pos_embed(self.pos_embed, hw)
        outs = []
        for i, block in enumerate(self.blocks):
            x = apply_block(block, x, hw, with_cp=self.with_cp)
            if i in self.out_indices:
                outs.append(to_map(x[:, 1:], hw).contiguous())
        if self.has_cls_token:
            cls = self.norm(x[:, 0])
            return (cls, ) if self.out_type == 'cls_token' else (*outs[:-1], (outs[-1], cls))
        return tuple(outs)

    def get_layer_depth(self, param_name: str, prefix: str = 'backbone.') -> Tuple[int, int]:
        """Layer of a parameter, for layer-wise learning-rate decay; the embeddings are 0, each block is a layer."""
        first_layers = dict(patch_embed=0, cls_token=0, pos_embed=0, blocks=1)
        return self._layer_depth(param_name, prefix, first_layers, self.arch['depth'] + 2)

    def _frozen_modules(self):
        if self.frozen_stages >= 0:
            yield from (self.patch_embed, self.cls_token, self.pos_embed)
            yield from self.blocks[:self.frozen_stages]
            if self.norm is not None and self.frozen_stages >= len(self.blocks):
                yield self.norm
