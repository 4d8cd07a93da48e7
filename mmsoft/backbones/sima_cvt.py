"""SimA in the body of CvT: three stages, convolutions before every attention."""
from functools import partial
from typing import List, Optional, Sequence, Tuple, Union

import torch
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from mmsoft.layers import ConvAttention, PreNormBlock, QuickGELU, apply_block, pad_to_multiple, to_map, to_tokens
from mmsoft.ops import l1_attention
from mmsoft.registry import MODELS
from .sima import SimABackbone, token_parameter


@MODELS.register_module()
class SimACvT(SimABackbone):
    """SimA with the layout of CvT; CvT's own softmax files fit and are a start for fine-tuning.

    Maps have strides 4, 8 and 16. Any input size works: images are padded with zeros at the right and bottom to a
    multiple of 4, and maps have ceil(H / stride) rows. Padding takes part in the norm over tokens; so does the class
    token, which the last stage has in front of its own.

    Args:
        arch (str or dict): ``'13'`` (the paper's), ``'21'``, ``'w24'``, or a dict with ``embed_dims``, ``num_heads``
            and ``depths``, three numbers each.
        out_indices (Sequence[int]): Stages to return, without a norm. Stages behind the last one asked for are not
            built.
        out_type (str): ``'featmap'``, or ``'cls_token'`` for classifiers.
        with_cls_token (bool): With ``'featmap'``, make the last stage's output a pair (map, class token), the token
            after the final norm.
        frozen_stages (int): 0 freezes the first convolutional embedding, k the first k stages, all of them also the
            final norm. -1 freezes nothing.
        norm_eval (bool): Keep BatchNorm in eval mode while training.
        with_cp (bool): Recompute each block in the backward pass to save memory.
        drop_rate (float): Elementwise dropout of the residual branches.
        drop_path_rate (float): Stochastic depth, growing linearly to this rate at the last block of the last stage
            and none in the others, as published; 0.05 in the paper.
        num_heads (int, optional): In all stages, instead of the heads of ``arch``; 1 is the paper's ablation.
        norm_order (int): 1, or 2 for the paper's ablation with the l2 norm.
        act_cfg (dict): Activation. Defaults to CvT's approximation of the GELU.
        in_channels (int): Channels of the image.
        norm_cfg (dict): Norm of the convolutional projections. Defaults to BatchNorm.
        init_cfg (dict or list[dict], optional): See :class:`BaseBackbone`.

    Raises:
        ValueError: If an argument names something that does not exist, or ``arch`` is incomplete.

    Example:
        >>> maps = SimACvT('13')(torch.rand(1, 3, 224, 224))
        >>> [tuple(m.shape) for m in maps]
        [(1, 64, 56, 56), (1, 192, 28, 28), (1, 384, 14, 14)]
    """

    published = 'sima_cvt'

    arch_settings = {
        '13': dict(embed_dims=[64, 192, 384], num_heads=[1, 3, 6], depths=[1, 2, 10]),
        '21': dict(embed_dims=[64, 192, 384], num_heads=[1, 3, 6], depths=[1, 4, 16]),
        'w24': dict(embed_dims=[192, 768, 1024], num_heads=[3, 12, 16], depths=[2, 2, 20]),
    }

    def __init__(self,
                 arch: Union[str, dict] = '13',
                 out_indices: Sequence[int] = (0, 1, 2),
                 out_type: str = 'featmap',
                 with_cls_token: bool = False,
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 with_cp: bool = False,
                 drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 num_heads: Optional[int] = None,
                 norm_order: int = 1,
                 act_cfg: dict = dict(type=QuickGELU),
                 in_channels: int = 3,
                 norm_cfg: dict = dict(type='BN'),
                 init_cfg: Optional[Union[dict, List[dict]]] = None) -> None:
        self.arch = self.read_arch(arch, num_heads and [num_heads] * 3)
        super().__init__(3, (-1, ) if out_type == 'cls_token' else out_indices, out_type, with_cls_token,
                         frozen_stages, norm_eval, with_cp, init_cfg)
        attend = partial(l1_attention, p=norm_order)
        sizes = zip(*(self.arch[key] for key in ('embed_dims', 'num_heads', 'depths')))
        self.stages = ModuleList()
        for i, (dims, heads, depth) in zip(range(self.out_indices[-1] + 1), sizes):
            last = i == 2
            drop_path_rates = torch.linspace(0, drop_path_rate if last else 0, depth).tolist()
            self.stages.append(
                CvTStage(
                    nn.Conv2d(in_channels, dims, *((3, 2, 1) if i else (7, 4, 2))),
                    dims,
                    ModuleList(
                        PreNormBlock(
                            ConvAttention(dims, heads, attend, norm_cfg=norm_cfg),
                            dims,
                            drop_rate,
                            rate,
                            eps=1e-5,
                            act_cfg=act_cfg) for rate in drop_path_rates),
                    with_cls_token=last,
                    with_cp=with_cp))
            in_channels = dims
        self.has_cls_token = last and (out_type == 'cls_token' or with_cls_token)
        self.norm = nn.LayerNorm(dims, eps=1e-5) if self.has_cls_token else None
        self.freeze()

    @property
    def embed_dims(self) -> List[int]:
        """Channels of each stage."""
        return self.arch['embed_dims']

    def forward(self, x: Tensor) -> tuple:
        """Images of shape (B, 3, H, W) to a tuple of maps (B, C, ceil(H / stride), ceil(W / stride))."""
        x = pad_to_multiple(x, 4)
        outs = []
        for i, stage in enumerate(self.stages):
            x, cls = stage(x)
            if i in self.out_indices:
                outs.append(x.contiguous())
        if self.has_cls_token:
            cls = self.norm(cls)
            return (cls, ) if self.out_type == 'cls_token' else (*outs[:-1], (outs[-1], cls))
        return tuple(outs)

    def get_layer_depth(self, param_name: str, prefix: str = 'backbone.') -> Tuple[int, int]:
        """Layer of a parameter, for layer-wise learning-rate decay; the first embedding is 0, each block is a layer."""
        depths = self.arch['depths']
        num_layers = sum(depths) + 2
        if not param_name.startswith(prefix + 'stages.'):
            return num_layers - 1, num_layers
        stage, part, index, *_ = (param_name[len(prefix + 'stages.'):] + '.').split('.')
        before = sum(depths[:int(stage)])
        if part == 'blocks':
            return before + int(index) + 1, num_layers
        return (before + 1 if before else 0), num_layers

    def _frozen_modules(self):
        if self.frozen_stages >= 0:
            yield from (self.stages[0].embed, self.stages[0].norm)
            yield from self.stages[:self.frozen_stages]
            if self.norm is not None and self.frozen_stages >= len(self.stages):
                yield self.norm


class CvTStage(BaseModule):
    """Convolutional token embedding, LayerNorm and blocks.

    Args:
        embed (nn.Module): Maps an image or a map to a map of ``embed_dims`` channels.
        embed_dims (int): Channels C.
        blocks (ModuleList): Called with tokens and the shape of their map.
        with_cls_token (bool): Put a class token in front of the tokens.
        with_cp (bool): Recompute each block in the backward pass.
    """

    def __init__(self, embed: nn.Module, embed_dims: int, blocks: ModuleList, with_cls_token: bool,
                 with_cp: bool) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.embed = embed
        self.norm = nn.LayerNorm(embed_dims, eps=1e-5)
        self.cls_token = token_parameter(1, embed_dims) if with_cls_token else None
        self.blocks = blocks

    def forward(self, x: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """A map to a map of shape (B, C, H', W') and the class token of shape (B, C), None where there is none."""
        x = self.embed(x)
        hw = x.shape[-2:]
        x = self.norm(to_tokens(x))
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.to(x.dtype).expand(x.size(0), -1, -1), x], dim=1)
        for block in self.blocks:
            x = apply_block(block, x, hw, with_cp=self.with_cp)
        if self.cls_token is None:
            return to_map(x, hw), None
        return to_map(x[:, 1:], hw), x[:, 0]
