"""SOFT and SOFT-Norm: softmax-free transformers with a Gaussian kernel (2110.11945; 2207.03341)."""

from collections.abc import Sequence
from typing import Union

import numpy as np
import torch
from mmengine.model import ModuleList, Sequential
from torch import Tensor, nn

from mmsoft.attention.base import Site, attention_class, build_attention
from mmsoft.attention.soft import SOFTAttention
from mmsoft.attention.softmax import SoftmaxAttention
from mmsoft.layers.blocks import PostNormBlock, PreNormBlock
from mmsoft.layers.embed import ConvNormAct, PatchEmbed
from mmsoft.layers.maps import to_map
from mmsoft.registry import MODELS
from mmsoft.utils import OptionError, check_choice

from .base import Arch, BaseBackbone, ImageSize, Stage, side_of

STRIDES = (4, 8, 16, 32)


@MODELS.register_module()
class SOFT(BaseBackbone):
    """SOFT / SOFT-Norm backbone (2207.03341, Table 2).

    Stages 0 to 2 attend with the Gaussian kernel, the last one with softmax and a class token. Any input size works:
    maps have ceil(H / stride) rows, and position embeddings are resized bilinearly.

    Args:
        arch (str or dict): ``'tiny'``, ``'small'``, ``'medium'``, ``'large'``, ``'huge'``; dict(embed_dims, num_heads,
            depths, optionally sampling_ratios, kernel_sizes), each with one number per stage, at most four stages.
        attention_norm (bool): SOFT-Norm, which dense prediction needs (2207.03341, Table 10), instead of SOFT.
        out_indices (Sequence[int]): Stages to return, strides 4, 8, 16 and 32; stage 3's map is after the final norm.
        attention (dict or list[dict]): A registered attention and its options. A dict applies to stages 0 to 2; without
            a ``type`` it has options of ``SOFTAttention``. A list has one dict per stage. ``SOFTAttention``, but no
            subclass of it, takes ``norm`` from ``attention_norm`` unless its dict sets it. The last stage has pre-norm
            blocks with ``SoftmaxAttention``, its default, and SOFT's post-norm blocks with any other.
        embedding (str): ``'overlapped'`` embeds with 3×3 convolutions, ``'patches'`` with non-overlapping patches of
            4×4 pixels, then of 2×2 tokens (2207.03341, Table 9).
        img_size (int or Sequence[int]): Side of the square images that the position embeddings are made for.
        norm_cfg (dict): Norm of the convolutional embeddings. Defaults to BatchNorm.
        **kwargs: See :class:`BaseBackbone`. As published, ``drop_path_rate`` grows linearly over all blocks; it is
            stochastic depth in pre-norm blocks, and elementwise dropout of the branches in SOFT's post-norm blocks.

    Example:
        >>> maps = SOFT('tiny')(torch.rand(1, 3, 224, 224))
        >>> [tuple(m.shape) for m in maps]
        [(1, 64, 56, 56), (1, 128, 28, 28), (1, 320, 14, 14), (1, 512, 7, 7)]
    """

    published = 'soft'
    stem = ('stages.0.embed', 'stages.0.pos_embed')
    arch_defaults = dict(sampling_ratios=(8, 4, 2, 1), kernel_sizes=(9, 5, 3, 3))

    # Depths of `small` are the paper's; the published code says 20 in stage 2.
    arch_settings: dict[str, dict] = {
        name: dict(embed_dims=[64, 128, 32 * heads, 512], num_heads=[2, 4, heads, 16], depths=depths)
        for name, heads, depths in (
            ('tiny', 10, [1, 2, 3, 2]),
            ('small', 10, [1, 3, 7, 4]),
            ('medium', 9, [1, 3, 29, 5]),
            ('large', 10, [1, 3, 40, 5]),
            ('huge', 11, [1, 5, 49, 5]),
        )
    }

    def __init__(
        self,
        arch: Arch = 'small',
        attention_norm: bool = True,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        attention: Union[dict, list[dict]] = dict(type='SOFTAttention'),
        embedding: str = 'overlapped',
        img_size: ImageSize = 224,
        norm_cfg: dict = dict(type='BN'),
        **kwargs,
    ) -> None:
        super().__init__(arch, out_indices, **kwargs)
        check_choice('embedding', embedding, ('overlapped', 'patches'))
        self.attention = self._per_stage(attention, attention_norm)
        if self.has_cls_token and len(self.arch['depths']) < len(STRIDES):
            raise OptionError('only the fourth stage has a class token, and arch has fewer')
        channels = [self.in_channels, *self.embed_dims]
        sizes = list(zip(*(self.arch[key] for key in ('embed_dims', 'num_heads', 'sampling_ratios', 'kernel_sizes'))))
        rates = iter(np.linspace(0, self.drop_path_rate, sum(self.arch['depths'])).tolist())
        self.stages = ModuleList()
        for i, (dims, heads, *others) in enumerate(sizes[: self.out_indices[-1] + 1]):
            site = Site(dims, heads, (-(-side_of(img_size) // STRIDES[i]),) * 2, *others)
            blocks = ModuleList(self._block(i, site, next(rates)) for _ in range(self.arch['depths'][i]))
            if embedding == 'patches':
                embed = PatchEmbed(channels[i], dims, 4 if i == 0 else 2)
            else:
                steps = [(channels[i], dims, 2)] if i else [(channels[0], 32, 2), (32, 32, 1), (32, dims, 2)]
                embed = Sequential(*(ConvNormAct(*step, norm_cfg) for step in steps))
            self.stages.append(Stage(embed, dims, blocks, i == 3, self.with_cp, grid=site.grid))
        self.norm = nn.LayerNorm(self.embed_dims[3], eps=1e-6) if len(self.stages) == len(STRIDES) else None
        self.freeze()

    def forward(self, x: Tensor) -> tuple:
        """Maps images (B, in_channels, H, W) to a tuple of maps (B, C, ceil(H / stride), ceil(W / stride))."""
        x, maps = x.contiguous(memory_format=torch.channels_last), []
        for i, stage in enumerate(self.stages):
            tokens, hw = stage(x)
            extra = tokens.size(1) - hw[0] * hw[1]
            if extra:
                tokens = self.norm(tokens)  # type: ignore[misc]
            x = to_map(tokens[:, extra:], hw)
            if i in self.out_indices:
                maps.append(x)
        return self._outputs(maps, tokens[:, 0] if self.has_cls_token else None)

    def default_init_cfg(self) -> list[dict]:
        """Initialisation of the published network."""
        return [
            *super().default_init_cfg(),
            dict(type='Kaiming', layer='Conv2d', mode='fan_out', nonlinearity='relu', bias=0),
            dict(type='Constant', layer=['LayerNorm', 'BatchNorm2d'], val=1, bias=0),
        ]

    @classmethod
    def read_arch(cls, arch: Arch) -> dict:
        """See :meth:`BaseBackbone.read_arch`; each entry has one number per stage, at most four stages."""
        arch = {name: list(value) for name, value in super().read_arch(arch).items()}
        stages = len(arch['depths'])
        if not 1 <= len(arch['embed_dims']) == len(arch['num_heads']) == stages <= min(4, *map(len, arch.values())):
            raise OptionError(f'arch needs one to four stages, and a number for each of them in {", ".join(arch)}')
        return arch

    def _per_stage(self, attention: Union[dict, list[dict]], norm: bool) -> list[dict]:
        stages = len(self.arch['depths'])
        if not isinstance(attention, (list, tuple)):
            one = {'type': 'SOFTAttention', **attention} if isinstance(attention, dict) else attention
            attention = [*[one] * 3, dict(type='SoftmaxAttention')][:stages]
        if len(attention) != stages:
            raise OptionError(f'attention needs one dict for each of the {stages} stages; got {len(attention)}')
        return [{'norm': norm, **cfg} if attention_class(cfg) is SOFTAttention else cfg for cfg in attention]

    def _block(self, stage: int, site: Site, rate: float) -> nn.Module:
        attn = build_attention(self.attention[stage], site)
        if stage == 3 and isinstance(attn, SoftmaxAttention):
            return PreNormBlock(attn, site.dims, self.drop_rate, rate)
        return PostNormBlock(attn, site.dims, 1 - (1 - self.drop_rate) * (1 - rate))  # two dropouts in a row as one
