"""SimA in the architecture of CvT: three stages, convolutions before every attention."""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Optional, Union

import numpy as np
import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, ModuleList, Sequential
from torch import Tensor, nn

from mmsoft.attention.base import Site, build_attention
from mmsoft.layers.blocks import PreNormBlock
from mmsoft.layers.maps import HW, pad_to_multiple, to_map, to_tokens
from mmsoft.registry import MODELS
from mmsoft.utils import OptionError

from .base import Arch, BaseBackbone, Stage


class QuickGELU(nn.Module):
    """``x · sigmoid(1.702 x)``, CvT's approximation of the GELU."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


@MODELS.register_module()
class SimACvT(BaseBackbone):
    """SimA with the layout of CvT; CvT's own softmax checkpoints fit and can initialise fine-tuning.

    Maps have strides 4, 8 and 16. Any input size works: images are padded with zeros at the right and bottom to a
    multiple of 4, and maps have ceil(H / stride) rows. The norm over tokens includes the padding, and in the last stage
    the class token, which is in front of the other tokens.

    Args:
        arch (str or dict): ``'13'`` (the paper's), ``'21'``, ``'w24'``; dict(embed_dims, num_heads, depths: 3 each).
        out_indices (Sequence[int]): Stages to return, without a norm.
        attention (dict or list[dict]): A registered attention and its options, or one per stage. Defaults to SimA's.
        num_heads (int, optional): Heads in all stages, instead of those of ``arch``.
        act_cfg (dict): Activation. Defaults to CvT's approximation of the GELU.
        norm_cfg (dict): Norm of the convolutional projections. Defaults to BatchNorm.
        **kwargs: See :class:`BaseBackbone`. As published, stochastic depth grows linearly over the blocks of the last
            stage to its rate, 0.05 in the paper; the other stages have none.

    Example:
        >>> maps = SimACvT('13')(torch.rand(1, 3, 224, 224))
        >>> [tuple(m.shape) for m in maps]
        [(1, 64, 56, 56), (1, 192, 28, 28), (1, 384, 14, 14)]
    """

    published = 'sima_cvt'
    stem = ('stages.0.embed', 'stages.0.norm')

    arch_settings = {
        '13': dict(embed_dims=[64, 192, 384], num_heads=[1, 3, 6], depths=[1, 2, 10]),
        '21': dict(embed_dims=[64, 192, 384], num_heads=[1, 3, 6], depths=[1, 4, 16]),
        'w24': dict(embed_dims=[192, 768, 1024], num_heads=[3, 12, 16], depths=[2, 2, 20]),
    }

    def __init__(
        self,
        arch: Arch = '13',
        out_indices: Sequence[int] = (0, 1, 2),
        attention: Union[dict, list[dict]] = dict(type='SimAAttention'),
        num_heads: Optional[int] = None,
        act_cfg: dict = dict(type=QuickGELU),
        norm_cfg: dict = dict(type='BN'),
        **kwargs,
    ) -> None:
        sizes = self.read_arch(arch)
        attentions = attention if isinstance(attention, (list, tuple)) else [attention] * 3
        if {*map(len, sizes.values()), len(attentions)} != {3}:
            raise OptionError(f'arch needs a number for each of three stages in {", ".join(sizes)}; attention, too')
        super().__init__(arch, out_indices, **kwargs)
        project = partial(ConvQKV, norm_cfg=norm_cfg)
        channels = [self.in_channels, *self.embed_dims]
        self.stages = ModuleList()
        for i, depth in enumerate(self.arch['depths'][: self.out_indices[-1] + 1]):
            dims, last = channels[i + 1], i == 2
            site = Site(dims, num_heads or self.arch['num_heads'][i], (56 >> i,) * 2, (8, 4, 2)[i], project=project)
            blocks = ModuleList(
                PreNormBlock(build_attention(attentions[i], site), dims, self.drop_rate, rate, 1e-5, act_cfg)
                for rate in np.linspace(0, self.drop_path_rate if last else 0, depth).tolist()
            )
            embed = nn.Conv2d(channels[i], dims, *((3, 2, 1) if i else (7, 4, 2)))
            self.stages.append(Stage(embed, dims, blocks, last, self.with_cp, norm=nn.LayerNorm(dims, eps=1e-5)))
        self.norm = nn.LayerNorm(self.embed_dims[-1], eps=1e-5) if self.has_cls_token else None
        self.freeze()

    def forward(self, x: Tensor) -> tuple:
        """Maps images (B, in_channels, H, W) to a tuple of maps (B, C, ceil(H / stride), ceil(W / stride))."""
        x, maps = pad_to_multiple(x, 4), []
        for i, stage in enumerate(self.stages):
            tokens, hw = stage(x)
            x = to_map(tokens[:, tokens.size(1) - hw[0] * hw[1] :], hw)
            if i in self.out_indices:
                maps.append(x)
        return self._outputs(maps, self.norm(tokens[:, 0]) if self.norm is not None else None)


class ConvProjection(Sequential):
    """Depthwise 3×3 convolution, norm and linear map. A class token in front of the tokens skips the first two."""

    def __init__(self, embed_dims: int, stride: int, norm_cfg: dict) -> None:
        conv = nn.Conv2d(embed_dims, embed_dims, 3, stride, padding=1, groups=embed_dims, bias=False)
        norm = build_norm_layer(norm_cfg, embed_dims)[1]
        super().__init__(OrderedDict(conv=conv, norm=norm, proj=nn.Linear(embed_dims, embed_dims)))

    def forward(self, x: Tensor, hw: HW) -> Tensor:
        """Maps tokens (B, [1 +] H' · W', C) to (B, [1 +] ceil(H' / stride) · ceil(W' / stride), C)."""
        extra = x.size(1) - hw[0] * hw[1]
        y = to_tokens(self.norm(self.conv(to_map(x[:, extra:], hw))))
        return self.proj(torch.cat([x[:, :extra], y], dim=1) if extra else y)


class ConvQKV(BaseModule):
    """A convolutional projection for queries, and two of stride 2 for keys and values (CvT, 2103.15808, Sec. 3.2).

    ``embed_dims`` are the channels C, a multiple of ``num_heads`` h; ``norm_cfg`` is the norm of the convolutions.
    """

    def __init__(self, embed_dims: int, num_heads: int, norm_cfg: dict) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q = ConvProjection(embed_dims, 1, norm_cfg)
        self.k = ConvProjection(embed_dims, 2, norm_cfg)
        self.v = ConvProjection(embed_dims, 2, norm_cfg)

    def forward(self, x: Tensor, hw: HW) -> tuple[Tensor, ...]:
        """Maps tokens (B, [1 +] n, C) to q (B, h, [1 +] n, C / h), and k and v (B, h, [1 +] m, C / h)."""
        projected = [project(x, hw) for project in (self.q, self.k, self.v)]
        return tuple(t.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for t in projected)
