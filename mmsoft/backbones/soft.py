"""SOFT and SOFT-Norm: softmax-free transformers with a Gaussian kernel (NeurIPS 2021; IJCV 2024)."""
from typing import Dict, List, Optional, Sequence, Tuple, Union

import torch
from mmengine.model import BaseModule, ModuleList, Sequential
from torch import Tensor, nn

from mmsoft.layers import (ConvNormAct, MultiheadAttention, PosEmbedResizer, PostNormBlock, PreNormBlock, SOFTAttention,
                           apply_block, to_map, to_tokens)
from mmsoft.ops import INVERSE_METHODS
from mmsoft.registry import MODELS
from .base import BaseBackbone

STRIDES = (4, 8, 16, 32)


@MODELS.register_module()
class SOFT(BaseBackbone):
    """SOFT / SOFT-Norm backbone (Table 2 of the papers).

    Stages 1 to 3 attend with the Gaussian kernel; the last stage of the published network attends with softmax, a
    class token among its tokens. Any input from 32×32 up works: maps have ceil(H / stride) rows, position embeddings
    are resized bilinearly, and a grid that a sampling ratio does not divide is padded by repeating its border tokens.

    Args:
        arch (str or dict): ``'tiny'``, ``'small'``, ``'medium'``, ``'large'``, ``'huge'``, or a dict with
            ``embed_dims``, ``num_heads`` and ``depths`` (as many numbers as stages, four at most) and optionally
            ``sampling_ratios``.
        attention_norm (bool): SOFT-Norm, which dense prediction needs (IJCV 2024, Table 10), instead of SOFT.
        out_indices (Sequence[int]): Stages to return, with strides 4, 8, 16 and 32; the last stage's map is after the
            final norm. Stages behind the last one asked for are not built.
        out_type (str): ``'featmap'``, or ``'cls_token'`` for classifiers.
        with_cls_token (bool): With ``'featmap'``, make the last stage's output a pair (map, class token).
        frozen_stages (int): 0 freezes the stem, k the stem and the first k stages. -1 freezes nothing.
        norm_eval (bool): Keep BatchNorm in eval mode while training.
        with_cp (bool): Recompute each block in the backward pass to save memory.
        drop_rate (float): Elementwise dropout of the residual branches, which the published code calls drop path.
        drop_path_rate (float): Stochastic depth, growing linearly to this rate at the last block.
        last_stage (str): ``'softmax'`` as published or ``'soft'`` as the papers draw it, with sampling ratio 1.
        sampling (str): Bottleneck tokens by ``'conv'``, ``'avg_pool'``, ``'random'`` or ``'biased'`` (Table 8).
        bottleneck (str): ``'ratio'``: m grows with the image; ``'fixed'``: m is at most ``bottleneck_size`` squared,
            cost is then linear in the number of tokens. The weights are the same.
        bottleneck_size (int): Rows and columns of a fixed bottleneck: 6, 7, 8, 9 in Table 7.
        newton_iterations (int): Steps of the Newton–Raphson inverse.
        inverse (str): One of :data:`mmsoft.ops.INVERSE_METHODS`, see :func:`mmsoft.ops.inverse_product`.
        in_channels (int): Channels of the image.
        img_size (int): Side of the images that the position embeddings are made for.
        norm_cfg (dict): Norm of the convolutional embeddings. Defaults to BatchNorm.
        init_cfg (dict or list[dict], optional): See :class:`BaseBackbone`.

    Raises:
        ValueError: If an argument names something that does not exist, or ``arch`` is incomplete.

    Example:
        >>> maps = SOFT('tiny')(torch.rand(1, 3, 224, 224))
        >>> [tuple(m.shape) for m in maps]
        [(1, 64, 56, 56), (1, 128, 28, 28), (1, 320, 14, 14), (1, 512, 7, 7)]
    """

    published = 'soft'

    # Depths of `small` are the paper's; the published code says 20 in stage 3.
    arch_settings: Dict[str, dict] = {
        name: dict(embed_dims=[64, 128, 32 * heads, 512], num_heads=[2, 4, heads, 16], depths=depths)
        for name, heads, depths in (
            ('tiny', 10, [1, 2, 3, 2]),
            ('small', 10, [1, 3, 7, 4]),
            ('medium', 9, [1, 3, 29, 5]),
            ('large', 10, [1, 3, 40, 5]),
            ('huge', 11, [1, 5, 49, 5]),
        )
    }

    def __init__(self,
                 arch: Union[str, dict] = 'small',
                 attention_norm: bool = False,
                 out_indices: Sequence[int] = (0, 1, 2, 3),
                 out_type: str = 'featmap',
                 with_cls_token: bool = False,
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 with_cp: bool = False,
                 drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 last_stage: str = 'softmax',
                 sampling: str = 'conv',
                 bottleneck: str = 'ratio',
                 bottleneck_size: int = 7,
                 newton_iterations: int = 20,
                 inverse: str = 'auto',
                 in_channels: int = 3,
                 img_size: int = 224,
                 norm_cfg: dict = dict(type='BN'),
                 init_cfg: Optional[Union[dict, List[dict]]] = None) -> None:
        self.arch = self._read_arch(arch)
        depths = self.arch['depths']
        super().__init__(len(depths), (-1, ) if out_type == 'cls_token' else out_indices, out_type, with_cls_token,
                         frozen_stages, norm_eval, with_cp, init_cfg)
        _check_choice('last_stage', last_stage, ('softmax', 'soft'))
        _check_choice('bottleneck', bottleneck, ('ratio', 'fixed'))
        _check_choice('inverse', inverse, INVERSE_METHODS)
        if newton_iterations < 1:
            raise ValueError(f'newton_iterations must be at least 1; got {newton_iterations}')
        if not -1 <= frozen_stages <= len(depths):
            raise ValueError(f'frozen_stages must lie between -1 and {len(depths)}; got {frozen_stages}')
        attn_cfg = dict(
            norm=attention_norm,
            iterations=newton_iterations,
            inverse=inverse,
            sampling=sampling,
            bottleneck_size=bottleneck_size if bottleneck == 'fixed' else None)

        self.stages = ModuleList()
        drop_paths = torch.linspace(0, drop_path_rate, sum(depths)).split(depths)
        for i in range(self.out_indices[-1] + 1):
            dims, last = self.arch['embed_dims'][i], i == len(STRIDES) - 1
            self.stages.append(
                SOFTStage(
                    self._embedding(in_channels, dims, i, norm_cfg),
                    dims,
                    -(-img_size // STRIDES[i]),
                    ModuleList(
                        self._block(i, dims, attn_cfg, last and last_stage == 'softmax', drop_rate, rate.item())
                        for rate in drop_paths[i]),
                    with_cls_token=last,
                    with_cp=with_cp))
            in_channels = dims
        self.norm = nn.LayerNorm(dims, eps=1e-6) if last else None
        self.freeze()

    @property
    def embed_dims(self) -> List[int]:
        """Channels of each stage."""
        return self.arch['embed_dims']

    def forward(self, x: Tensor) -> tuple:
        """Images of shape (B, 3, H, W) to a tuple of maps (B, C, ceil(H / stride), ceil(W / stride))."""
        x, outs = x.contiguous(memory_format=torch.channels_last), []
        for i, stage in enumerate(self.stages):
            tokens, hw = stage(x)
            extra = tokens.size(1) - hw[0] * hw[1]
            if extra:
                tokens = self.norm(tokens)
            x = to_map(tokens[:, extra:], hw)
            if i in self.out_indices:
                outs.append((x.contiguous(), tokens[:, 0]) if extra and self.with_cls_token else x.contiguous())
        return (tokens[:, 0], ) if self.out_type == 'cls_token' else tuple(outs)

    def get_layer_depth(self, param_name: str, prefix: str = 'backbone.') -> Tuple[int, int]:
        """Layer of a parameter, for layer-wise learning-rate decay; the stem is 0, each block is a layer."""
        depths = self.arch['depths']
        num_layers = sum(depths) + 2
        if not param_name.startswith(prefix):
            return num_layers - 1, num_layers
        parts = param_name[len(prefix):].split('.')
        if parts[0] != 'stages':
            return num_layers - 1, num_layers
        stage = int(parts[1])
        before = sum(depths[:stage])
        if parts[2] == 'blocks':
            return before + int(parts[3]) + 1, num_layers
        return (before + 1 if stage else 0), num_layers

    def _frozen_modules(self):
        if self.frozen_stages >= 0:
            yield self.stages[0].embed
            yield from self.stages[:self.frozen_stages]
            if self.norm is not None and self.frozen_stages >= len(self.stages):
                yield self.norm

    def _read_arch(self, arch: Union[str, dict]) -> dict:
        if isinstance(arch, str):
            _check_choice('arch', arch.lower(), tuple(self.arch_settings))
            arch = self.arch_settings[arch.lower()]
        missing = {'embed_dims', 'num_heads', 'depths'} - set(arch)
        if missing:
            raise ValueError(f'arch as a dict needs embed_dims, num_heads and depths; {", ".join(sorted(missing))} missing')
        arch = {name: list(value) for name, value in {'sampling_ratios': (8, 4, 2, 1), **arch}.items()}
        stages = len(arch['depths'])
        if not 1 <= stages <= 4 or not len(arch['embed_dims']) == len(arch['num_heads']) == stages:
            raise ValueError('arch needs one to four stages, and as many embed_dims and num_heads as depths')
        return arch

    @staticmethod
    def _embedding(in_channels: int, dims: int, stage: int, norm_cfg: dict) -> Sequential:
        widths, strides = ((32, 32, dims), (2, 1, 2)) if stage == 0 else ((dims, ), (2, ))
        convs = []
        for width, stride in zip(widths, strides):
            convs.append(ConvNormAct(in_channels, width, stride, norm_cfg))
            in_channels = width
        return Sequential(*convs)

    def _block(self, stage: int, dims: int, attn_cfg: dict, softmax: bool, drop_rate: float, drop_path_rate: float):
        heads = self.arch['num_heads'][stage]
        if softmax:
            return PreNormBlock(MultiheadAttention(dims, heads), dims, drop_rate, drop_path_rate)
        attn = SOFTAttention(
            dims, heads, self.arch['sampling_ratios'][stage], kernel_size=(9, 5, 3, 3)[stage], **attn_cfg)
        return PostNormBlock(attn, dims, drop_rate, drop_path_rate)


class SOFTStage(BaseModule):
    """Convolutional embedding, learned position embedding and blocks.

    Args:
        embed (nn.Module): Maps an image or a map to a map of ``embed_dims`` channels.
        embed_dims (int): Channels C.
        grid (int): Rows and columns that the position embedding is made for.
        blocks (ModuleList): Called with tokens and the shape of their map.
        with_cls_token (bool): Put a class token, with a position embedding of its own, in front of the tokens.
        with_cp (bool): Recompute each block in the backward pass.
    """

    def __init__(self, embed: nn.Module, embed_dims: int, grid: int, blocks: ModuleList, with_cls_token: bool,
                 with_cp: bool) -> None:
        super().__init__()
        self.resize_pos_embed = PosEmbedResizer((grid, grid))
        self.with_cp = with_cp
        self.embed = embed
        self.pos_embed = nn.Parameter(torch.zeros(1, grid * grid + with_cls_token, embed_dims))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dims)) if with_cls_token else None
        self.blocks = blocks

    def init_weights(self) -> None:
        """Truncated normal for the embeddings that no initializer knows."""
        super().init_weights()
        for parameter in (self.pos_embed, self.cls_token):
            if parameter is not None:
                nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """A map to tokens of shape (B, [1 +] H' · W', C) and (H', W')."""
        x = self.embed(x)
        hw = (x.size(2), x.size(3))
        x = to_tokens(x)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.to(x.dtype).expand(x.size(0), -1, -1), x], dim=1)
        x = x + self.resize_pos_embed(self.pos_embed, hw)
        for block in self.blocks:
            x = apply_block(block, x, hw, with_cp=self.with_cp)
        return x, hw


def _check_choice(name: str, value: str, choices: Tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f'{name} must be one of {", ".join(choices)}; got {value!r}')
