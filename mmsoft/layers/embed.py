"""Embeddings of images and maps by convolutions."""

from collections import OrderedDict
from functools import partial
from typing import Callable

import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, Sequential
from torch import Tensor, nn

from mmsoft.ops.numerics import HALF, autocast_enabled, is_exporting

from .maps import pad_to_multiple, to_map, to_tokens


class ConvNormAct(Sequential):
    """3×3 convolution, norm and activation; the defaults are SOFT's (mmcv's ConvModule would warn of their bias).

    ``act`` builds the activation. For inference, ``mmcv.cnn.fuse_conv_bn`` can fuse convolution and norm.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        norm_cfg: dict = dict(type='BN'),
        bias: bool = True,
        act: Callable[[], nn.Module] = partial(nn.ReLU, inplace=True),
    ) -> None:
        conv = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=bias)
        super().__init__(OrderedDict(conv=conv, norm=build_norm_layer(norm_cfg, out_channels)[1], act=act()))


class PatchConv(nn.Conv2d):
    """Convolution with its kernel size as stride; a matrix product over patches if :func:`is_half_on_cpu`."""

    def __init__(self, in_channels: int, out_channels: int, patch_size: int, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, patch_size, patch_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, C, H, W), whose sides are multiples of k, to (B, C', H / k, W / k)."""
        if not is_half_on_cpu(x):
            return super().forward(x)
        k = self.kernel_size[0]
        patches = x.permute(0, 2, 3, 1).unflatten(2, (-1, k)).unflatten(1, (-1, k)).transpose(2, 3).flatten(3)
        out = patches @ self.weight.permute(2, 3, 1, 0).flatten(0, 2)
        return (out if self.bias is None else out + self.bias.to(out.dtype)).permute(0, 3, 1, 2)


class HeadConv(nn.Conv2d):
    """Depthwise convolution, without bias, with one filter for all channels of a head: weight (heads, 1, k, k)."""

    def __init__(self, channels: int, heads: int, kernel_size: int) -> None:
        super().__init__(heads, heads, kernel_size, padding=kernel_size // 2, groups=heads, bias=False)
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, channels, H, W), head after head, to the same shape."""
        filters = self.weight.expand(-1, self.channels // self.groups, -1, -1).flatten(0, 1).unsqueeze(1)
        return F.conv2d(x, filters, padding=self.padding, groups=self.channels)


def is_half_on_cpu(x: Tensor) -> bool:
    """Whether a CPU convolves in half precision, outside exports: oneDNN (AMX) errs if stride = kernel size."""
    return x.device.type == 'cpu' and (x.dtype in HALF or autocast_enabled('cpu')) and not is_exporting()


class PatchEmbed(BaseModule):
    """Linear map of patches and LayerNorm, as in PVT (2102.12122, Sec. 3.2), after zero padding to whole patches."""

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.conv = PatchConv(in_channels, embed_dims, patch_size)
        self.norm = nn.LayerNorm(embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, in_channels, H, W) to (B, C, ceil(H / patch_size), ceil(W / patch_size))."""
        x = self.conv(pad_to_multiple(x, self.patch_size))
        return to_map(self.norm(to_tokens(x)), (x.size(2), x.size(3)))
