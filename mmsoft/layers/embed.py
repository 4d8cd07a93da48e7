"""Convolutional embeddings, and position embeddings on the grid of the current input."""
from collections import OrderedDict
from typing import Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import Sequential
from torch import Tensor, nn

from mmsoft.ops.precision import no_autocast


def conv_norm_act(in_channels: int, out_channels: int, stride: int, norm_cfg: dict = dict(type='BN')) -> Sequential:
    """3×3 convolution with bias, norm and ReLU, as SOFT embeds (mmcv's ConvModule warns of a bias before a norm)."""
    return Sequential(
        OrderedDict(
            conv=nn.Conv2d(in_channels, out_channels, 3, stride, padding=1),
            norm=build_norm_layer(norm_cfg, out_channels)[1],
            act=nn.ReLU(inplace=True)))


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
        image = tokens.transpose(1, 2).unflatten(2, grid)
        image = image.to(torch.promote_types(image.dtype, torch.float32))
        image = F.interpolate(image, size=hw, mode=mode, align_corners=False)
    resized = image.flatten(2).transpose(1, 2).to(pos_embed.dtype)
    return torch.cat([pos_embed[:, :extra], resized], dim=1) if extra else resized
