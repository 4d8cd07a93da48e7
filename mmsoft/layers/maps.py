"""Maps, and the tokens that they consist of: views, padding, windows and resizing."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops.numerics import at_least_float32, is_exporting, is_recording

HW = tuple[int, int]  # rows and columns of a map


def to_map(tokens: Tensor, hw: HW) -> Tensor:
    """Views tokens of shape (B, n, C) as a map of shape (B, C, H, W) with n = H · W, in channels-last format."""
    # For one image, transpose(1, 2).unflatten(2, hw) has strides of another format: convolutions would copy the map.
    return tokens.reshape(tokens.size(0), *hw, tokens.size(2)).permute(0, 3, 1, 2)


def to_tokens(x: Tensor) -> Tensor:
    """Views a map of shape (B, C, H, W) as tokens of shape (B, H · W, C)."""
    # Not flatten(2).transpose(1, 2): for one image, if its class token has a gradient, too, the map's gradient would
    # get strides that torch's batch norm misreads on a CPU.
    return x.permute(0, 2, 3, 1).flatten(1, 2)


def pad_to_multiple(x: Tensor, divisor: int) -> Tensor:
    """Pads images of shape (B, C, H, W) with zeros at the right and bottom until ``divisor`` divides both sides."""
    rows, columns = (((side - 1) // divisor + 1) * divisor for side in x.shape[2:])
    if is_recording():  # an exporter cannot tell that the missing number of rows is not negative
        x = F.pad(x, (0, divisor - 1) * 2)
        x = x.index_select(2, torch.arange(rows, device=x.device))
        return x.index_select(3, torch.arange(columns, device=x.device))
    bottom, right = rows - x.size(2), columns - x.size(3)
    return F.pad(x, (0, right, 0, bottom)) if bottom > 0 or right > 0 else x


def whole_windows(x: Tensor, size: int) -> Tensor:
    """Repeats the right and bottom border of maps (B, C, H, W) until ``size`` divides both sides."""
    x = x.permute(0, 2, 3, 1)  # so that rows are copied as a whole
    for dim in (1, 2):
        side = x.size(dim)
        whole = ((side - 1) // size + 1) * size
        if is_recording() or whole != side:
            x = x.index_select(dim, torch.arange(whole, device=x.device).clamp(max=side - 1))
    return x.permute(0, 3, 1, 2)


@at_least_float32
def resample(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Maps (…, H, W) to (…, H', W') by weights (H', H) and (W', W): deterministic on every device, exported exactly."""
    return rows @ x @ columns.transpose(-2, -1)


@at_least_float32
def resample_tokens(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """:func:`resample` of a map (H, W, C), whose channels stay together, to tokens (H' · W', C)."""
    return (columns @ (rows @ x.flatten(1)).unflatten(1, x.shape[1:])).flatten(0, 1)


def pooling_matrix(size: int, new_size: int, like: Tensor) -> Tensor:
    """Weights (new_size, size) that average one side of a map as adaptive pooling does, in float32 at least."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    window, place = (torch.arange(n, device=like.device) for n in (new_size, size))
    start, end = window * size // new_size, ((window + 1) * size + new_size - 1) // new_size
    return ((place >= start[:, None]) & (place < end[:, None])).to(dtype) / (end - start)[:, None].to(dtype)


class AdaptivePool(nn.AdaptiveAvgPool2d):
    """Adaptive average pooling by two matrix products, as ONNX has no operator for maps of any size."""

    def forward(self, x: Tensor) -> Tensor:
        size = self.output_size if isinstance(self.output_size, tuple) else (self.output_size,) * 2
        return resample(x, *(pooling_matrix(n, new or n, x) for n, new in zip(x.shape[2:], size)))


def resize_pos_embed(pos_embed: Tensor, grid: HW, hw: HW, mode: str = 'bilinear') -> Tensor:
    """Resizes a position embedding (1, extra + grid[0] · grid[1], C) to (1, extra + hw[0] · hw[1], C).

    The first ``extra`` embeddings are kept. ``mode`` is ``'bilinear'``, as in SOFT's published code, or ``'bicubic'``,
    with ``align_corners=False``. Computed in float32 at least; the result has the dtype of ``pos_embed``.
    """
    if not is_exporting() and tuple(grid) == tuple(hw):
        return pos_embed
    extra = pos_embed.size(1) - grid[0] * grid[1]
    dtype, device = torch.promote_types(pos_embed.dtype, torch.float32), pos_embed.device
    bases = [(torch.eye(old, dtype=dtype, device=device)[None, None], (new, old)) for old, new in zip(grid, hw)]
    rows, columns = (F.interpolate(one, size, mode=mode, align_corners=False)[0, 0] for one, size in bases)
    resized = resample_tokens(pos_embed[0, extra:].unflatten(0, grid), rows, columns).unsqueeze(0)
    return torch.cat([pos_embed[:, :extra], resized], dim=1) if extra else resized


def best_class(scores: Tensor, size: tuple[int, int], align_corners: bool) -> Tensor:
    """``F.interpolate(scores, size, mode='bilinear').argmax(0)`` of scores (C, h, w), one class at a time.

    Of equal scores, the first class wins, as in ``argmax``. Returns labels of shape ``size`` and int64.
    """
    best, labels = scores.new_full(size, -torch.inf), torch.zeros(size, dtype=torch.long, device=scores.device)
    for index in range(scores.size(0)):
        score = F.interpolate(scores[None, index : index + 1], size, mode='bilinear', align_corners=align_corners)[0, 0]
        labels.masked_fill_(score > best, index)
        torch.maximum(best, score, out=best)
    return labels
