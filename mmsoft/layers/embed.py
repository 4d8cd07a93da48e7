"""Convolutional embeddings, and position embeddings on the grid of the current input."""
import math
from collections import OrderedDict
from functools import partial
from typing import Callable, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, ModuleList, Sequential
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_weights

from mmsoft.ops.precision import no_autocast
from .padding import extent_mask
from .token_map import to_map, to_tokens

# Of torch 2.3 and later. A compiler folds norms by itself, and stumbles over one that is folded for it.
_is_compiling = getattr(getattr(torch, 'compiler', None), 'is_compiling', bool)


class ConvNormAct(Sequential):
    """3×3 convolution, norm and activation; by default as SOFT embeds (mmcv's ConvModule warns of a bias there).

    Without gradients, a BatchNorm that uses its running statistics is folded into the convolution's weights on the fly,
    which saves a pass over the map and changes neither modules nor names. Where hooks watch the two, they run in turn.

    Args:
        in_channels (int): Channels of the map.
        out_channels (int): Channels of the result.
        stride (int): Of the convolution.
        norm_cfg (dict): Norm. Defaults to BatchNorm.
        bias (bool): Of the convolution. Defaults to True.
        act (Callable): Makes the activation. Defaults to ReLU.
    """

    def __init__(self,
                 in_channels: int,
                 out_channels: int,
                 stride: int,
                 norm_cfg: dict = dict(type='BN'),
                 bias: bool = True,
                 act: Callable[[], nn.Module] = partial(nn.ReLU, inplace=True)) -> None:
        super().__init__(
            OrderedDict(
                conv=nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=bias),
                norm=build_norm_layer(norm_cfg, out_channels)[1],
                act=act()))

    def forward(self, x: Tensor) -> Tensor:
        """Maps of shape (B, C, H, W) to (B, C', ceil(H / stride), ceil(W / stride))."""
        if torch.is_grad_enabled() or _is_compiling() or not self._can_fold():
            return super().forward(x)
        conv, norm = self.conv, self.norm
        weight, bias = fuse_conv_bn_weights(conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps,
                                            norm.weight, norm.bias)
        return self.act(F.conv2d(x, weight, bias, conv.stride, conv.padding))

    def _can_fold(self) -> bool:
        norm = self.norm
        hooked = any(module._forward_hooks or module._forward_pre_hooks for module in (self.conv, norm))
        return isinstance(norm, _BatchNorm) and not norm.training and norm.track_running_stats and not hooked


class ConvPatchEmbed(BaseModule):
    """Patches by 3×3 convolutions of stride 2 that double the channels, GELU between them (XCiT, Sec. 3).

    Any input size works: the map has ceil(H / patch_size) rows.

    Args:
        in_channels (int): Channels of the image.
        embed_dims (int): Channels C of the patches.
        patch_size (int): A power of two, 8 or 16 as published.
        norm_cfg (dict): Norm of each convolution. Defaults to BatchNorm.

    Raises:
        ValueError: If ``patch_size`` is not a power of two, or too large for ``embed_dims``.
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, norm_cfg: dict = dict(type='BN')) -> None:
        super().__init__()
        steps = patch_size.bit_length() - 1
        if patch_size != 2**steps or steps == 0 or embed_dims % 2**(steps - 1):
            raise ValueError(f'{embed_dims} channels do not make patches of {patch_size} by doubling')
        widths = [in_channels] + [embed_dims // 2**i for i in reversed(range(steps))]
        acts = [nn.GELU] * (steps - 1) + [nn.Identity]
        self.convs = ModuleList(
            ConvNormAct(before, after, 2, norm_cfg, bias=False, act=act)
            for before, after, act in zip(widths, widths[1:], acts))

    def forward(self, x: Tensor, extent: Optional[Tensor] = None) -> Tuple[Tensor, Optional[Tensor]]:
        """Images of shape (B, 3, H, W), and their extent before padding if it matters, to the same of patches.

        Each convolution then finds zeros beyond an image's end, as it would if the image stood alone.
        """
        for conv in self.convs:
            x = conv(x)
            if extent is not None:
                extent = (extent + 1) // 2
                x = x * extent_mask(extent, x.shape[-2:])
        return x, extent


class FourierPositionEncoding(BaseModule):
    """Sines and cosines of both coordinates, projected to the channels of the tokens (XCiT, published network).

    Coordinates run from 2π / rows to 2π, whatever the grid. The projection is a 1×1 convolution, but each of its
    halves sees one coordinate, so rows and columns are projected apart and added: H + W products instead of H · W.

    Args:
        embed_dims (int): Channels C.
        num_feats (int): Sines and cosines of each coordinate. Defaults to 32.
        temperature (float): Ratio of the greatest to the least wavelength. Defaults to 10000.
    """

    def __init__(self, embed_dims: int, num_feats: int = 32, temperature: float = 10000) -> None:
        super().__init__()
        self.num_feats = num_feats
        self.temperature = temperature
        self.proj = nn.Conv2d(2 * num_feats, embed_dims, 1)

    def forward(self, hw: Tuple[int, int], extent: Optional[Tensor] = None) -> Tensor:
        """Encoding of a grid, shape (C, H', W'), or (B, C, H', W') for grids of which (B, 2) ``extent`` is used."""
        rows, columns = hw if extent is None else extent.unsqueeze(2).unbind(1)
        weight_y, weight_x = self.proj.weight.flatten(1).chunk(2, dim=1)
        y = F.linear(self._waves(hw[0], rows), weight_y, self.proj.bias)
        x = F.linear(self._waves(hw[1], columns), weight_x)
        return (y.unsqueeze(-2) + x.unsqueeze(-3)).movedim(-1, -3)

    def _waves(self, length: int, extent: Union[int, Tensor]) -> Tensor:
        """Sine and cosine in turn, shape (length, num_feats), or (B, length, num_feats) for (B, 1) ``extent``."""
        weight = self.proj.weight
        exact = dict(dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
        phase = torch.arange(1, length + 1, **exact) / (extent + 1e-6) * (2 * math.pi)
        angle = phase.unsqueeze(-1) * self.temperature**(-torch.arange(0, self.num_feats, 2, **exact) / self.num_feats)
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).to(weight.dtype)


class PosEmbedResizer(nn.Module):
    """:func:`resize_pos_embed` of one parameter; in evaluation, the last result serves for images of the same size.

    It is forgotten when the parameter is changed in place or moved, and by ``train()`` and ``eval()``, because hooks
    that swap weights, as for their averages, leave no other trace. Copies of a model start without it.

    Args:
        grid (tuple[int, int]): Rows and columns that the position embedding belongs to.
        mode (str): See :func:`resize_pos_embed`. Defaults to ``'bilinear'``.
    """

    def __init__(self, grid: Tuple[int, int], mode: str = 'bilinear') -> None:
        super().__init__()
        self.grid = grid
        self.mode = mode
        self._last = None, None

    def train(self, mode: bool = True) -> 'PosEmbedResizer':
        """Forgets, too."""
        self._last = None, None
        return super().train(mode)

    def _apply(self, *args, **kwargs) -> 'PosEmbedResizer':
        self._last = None, None
        return super()._apply(*args, **kwargs)

    def __getstate__(self) -> dict:
        return dict(self.__dict__, _last=(None, None))

    def forward(self, pos_embed: Tensor, hw: Tuple[int, int]) -> Tensor:
        """Position embedding of shape (1, extra + n, C) to (1, extra + hw[0] · hw[1], C)."""
        if self.training or torch.is_grad_enabled() or pos_embed.is_inference() or _is_compiling():
            return resize_pos_embed(pos_embed, self.grid, hw, self.mode)
        key = tuple(hw), pos_embed.dtype, pos_embed.device, pos_embed.data_ptr(), pos_embed._version
        last, resized = self._last
        if key != last:
            resized = resize_pos_embed(pos_embed, self.grid, hw, self.mode)
            self._last = key, resized
        return resized


def resize_pos_embed(pos_embed: Tensor, grid: Tuple[int, int], hw: Tuple[int, int], mode: str = 'bilinear') -> Tensor:
    """Position embedding of one grid, resized to another.

    Args:
        pos_embed (Tensor): Shape (1, extra + grid[0] · grid[1], C); the ``extra`` tokens in front keep theirs.
        grid (tuple[int, int]): Rows and columns that ``pos_embed`` belongs to.
        hw (tuple[int, int]): Rows and columns wanted.
        mode (str): ``'bilinear'`` (as SOFT publishes) or ``'bicubic'``, with ``align_corners=False``.

    Returns:
        Tensor: Shape (1, extra + hw[0] · hw[1], C), in the dtype of ``pos_embed``, resized in float32 at least.
    """
    if tuple(grid) == tuple(hw):
        return pos_embed
    extra = pos_embed.size(1) - grid[0] * grid[1]
    tokens = pos_embed[:, extra:]
    with no_autocast(pos_embed.device.type):
        image = to_map(tokens, grid)
        image = image.to(torch.promote_types(image.dtype, torch.float32))
        image = F.interpolate(image, size=hw, mode=mode, align_corners=False)
    resized = to_tokens(image).to(pos_embed.dtype)
    return torch.cat([pos_embed[:, :extra], resized], dim=1) if extra else resized
