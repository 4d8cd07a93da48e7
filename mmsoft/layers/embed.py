"""Convolutional embeddings."""
from collections import OrderedDict
from functools import partial
from typing import Callable, Optional, Tuple

from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, ModuleList, Sequential
from torch import Tensor, nn

from mmsoft.utils import OptionError
from .padding import extent_mask, pad_to_multiple
from .token_map import to_map, to_tokens


class ConvNormAct(Sequential):
    """3×3 convolution, norm and activation; by default as SOFT embeds (mmcv's ConvModule warns of a bias there).

    ``mmcv.cnn.fuse_conv_bn`` folds the two where weights no longer change.

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


class PatchEmbed(BaseModule):
    """Linear map of patches that do not overlap, and LayerNorm, as PVT embeds (2102.12122, Sec. 3.2).

    Args:
        in_channels (int): Channels of the map.
        embed_dims (int): Channels C of the patches.
        patch_size (int): Side of a patch; a map is padded with zeros at its right and bottom to whole ones.
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.conv = nn.Conv2d(in_channels, embed_dims, patch_size, patch_size)
        self.norm = nn.LayerNorm(embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """A map of shape (B, in_channels, H, W) to (B, C, ceil(H / patch_size), ceil(W / patch_size))."""
        x = self.conv(pad_to_multiple(x, self.patch_size))
        return to_map(self.norm(to_tokens(x)), x.shape[-2:])


class ConvPatchEmbed(BaseModule):
    """Patches by 3×3 convolutions of stride 2 that double the channels, GELU between them (XCiT, 2106.09681, Sec. 3).

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
            raise OptionError(f'{embed_dims} channels do not make patches of {patch_size} by doubling')
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
