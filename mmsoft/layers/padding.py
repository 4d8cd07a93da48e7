"""Where images in a batch end that are padded to one size, and attention that leaves the padding out."""

from collections.abc import Sequence
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .maps import HW


def image_extent(x: Tensor) -> Tensor:
    """Rows and columns of each image before its zero padding.

    Detectors normalise images, pad them with zeros at the right and bottom to the size of the largest, and hand the
    backbone nothing else. A row or column of padding is exactly zero in every channel, which no row of a normalised
    photograph is. Images (B, C, H, W) give (B, 2) of int64: last row and column not all zero; of zeros alone, H and W.
    """

    def length(inside: Tensor) -> Tensor:
        return inside.size(1) - inside.flip(1).int().argmax(dim=1)

    inside = x.ne(0).any(dim=1)
    return torch.stack([length(inside.any(dim=2)), length(inside.any(dim=1))], dim=1)


def extent_mask(extent: Tensor, hw: Sequence[int]) -> Tensor:
    """Mask of shape (B, 1, H', W') that is true in the first ``extent`` rows and columns, given as (B, 2)."""
    rows, columns = (torch.arange(length, device=extent.device) < extent[:, i, None] for i, length in enumerate(hw))
    return (rows[:, :, None] & columns[:, None, :]).unsqueeze(1)


def attend_inside(
    attn: nn.Module, x: Tensor, hw: HW, mask: Optional[Tensor], sizes: Optional[list[HW]] = None
) -> Tensor:
    """Calls an attention (see :class:`mmsoft.attention.Attention`), with one image at a time if it takes no mask.

    ``sizes`` are then the rows and columns of each image in the mask; zeros come out at other places.
    """
    if mask is None or attn.takes_mask:
        return attn(x, hw, mask)
    assert sizes is not None
    extra, outs = x.size(1) - hw[0] * hw[1], []
    for image, (rows, columns) in zip(x.split(1), sizes):
        tokens = image[:, extra:].unflatten(1, hw)[:, :rows, :columns].flatten(1, 2)
        out = attn(torch.cat([image[:, :extra], tokens], dim=1), (rows, columns))
        if out.size(1) > extra:  # otherwise it is of the class token alone
            padded = F.pad(out[:, extra:].unflatten(1, (rows, columns)), (0, 0, 0, hw[1] - columns, 0, hw[0] - rows))
            out = torch.cat([out[:, :extra], padded.flatten(1, 2)], dim=1)
        outs.append(out)
    return torch.cat(outs) if outs else x
