"""Images that end before their tensor does: where, and which tokens of a map belong to the image."""
from typing import Callable, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmsoft.ops.numerics import is_exporting


def pad_to_multiple(x: Tensor, divisor: int) -> Tensor:
    """Pads images of shape (B, C, H, W) with zeros at the right and bottom until ``divisor`` divides both sides."""
    rows, columns = (((side - 1) // divisor + 1) * divisor for side in x.shape[2:])
    if is_exporting():  # how much is missing, a recorder of shapes could not tell to be positive
        x = F.pad(x, (0, divisor - 1) * 2)
        return x.index_select(2, torch.arange(rows, device=x.device)).index_select(
            3, torch.arange(columns, device=x.device))
    bottom, right = rows - x.size(2), columns - x.size(3)
    return F.pad(x, (0, right, 0, bottom)) if bottom or right else x


def image_extent(x: Tensor) -> Tensor:
    """Rows and columns of each image before its zero padding.

    Detectors normalise images, pad them with zeros at the right and bottom to the size of the largest, and hand the
    backbone nothing else. A row or column of padding is exactly zero in every channel, which no row of a normalised
    photograph is.

    Args:
        x (Tensor): Images of shape (B, C, H, W).

    Returns:
        Tensor: Shape (B, 2) of int64: up to the last row and column that are not all zero. An image of zeros keeps
        its full size.
    """
    inside = x.ne(0).any(dim=1)
    return torch.stack([_length(inside.any(dim=2)), _length(inside.any(dim=1))], dim=1)


def extent_mask(extent: Tensor, hw: Tuple[int, int]) -> Tensor:
    """Mask of shape (B, 1, H', W') that is true in the first ``extent`` rows and columns, given as (B, 2)."""
    rows, columns = (torch.arange(length, device=extent.device) < extent[:, i, None] for i, length in enumerate(hw))
    return (rows[:, :, None] & columns[:, None, :]).unsqueeze(1)


def _length(inside: Tensor) -> Tensor:
    """Number of entries of (B, length) up to the last true one."""
    return inside.size(1) - inside.flip(1).int().argmax(dim=1)


def one_by_one(function: Callable[[Tensor, Tuple[int, int]], Tensor], x: Tensor, hw: Tuple[int, int],
               mask: Tensor) -> Tensor:
    """Applies what knows no masks to each image's own tokens, as if it stood alone.

    Args:
        function (Callable): Maps tokens (1, extra + n, C) and the shape of their map, any, to the same.
        x (Tensor): Tokens of shape (B, extra + H' · W', C), class tokens in front of those of a map.
        hw (tuple[int, int]): Rows H' and columns W' of the map.
        mask (Tensor): Shape (B, 1, H', W') of bool, as :func:`extent_mask` makes it.

    Returns:
        Tensor: Shape of ``x``, zeros where the mask is false.
    """
    extra, outs = x.size(1) - hw[0] * hw[1], []
    for image, inside in zip(x.split(1), mask[:, 0]):
        rows, columns = int(inside.any(1).sum()), int(inside.any(0).sum())
        tokens = image[:, extra:].unflatten(1, hw)[:, :rows, :columns].flatten(1, 2)
        out = function(torch.cat([image[:, :extra], tokens], dim=1), (rows, columns))
        padded = F.pad(out[:, extra:].unflatten(1, (rows, columns)), (0, 0, 0, hw[1] - columns, 0, hw[0] - rows))
        outs.append(torch.cat([out[:, :extra], padded.flatten(1, 2)], dim=1))
    return torch.cat(outs) if outs else x
