"""Resampling of maps as two small products: deterministic on every device, and exact to export at any size."""
import torch
import torch.nn.functional as F
from torch import Tensor

from mmsoft.ops.numerics import at_least_float32


@at_least_float32
def resample(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Maps of shape (…, H, W) to (…, H', W') by weights of shape (H', H) and (W', W), in float32 at least."""
    return rows @ x @ columns.transpose(-2, -1)


def interpolation_matrix(size: int, new_size: int, like: Tensor, mode: str) -> Tensor:
    """Weights of shape (new_size, size) that interpolate one side of a map.

    Args:
        size (int): Length of the side.
        new_size (int): Length wanted.
        like (Tensor): Its device and dtype, float32 at least, are the result's.
        mode (str): ``'bilinear'`` or ``'bicubic'`` of :func:`torch.nn.functional.interpolate`, corners not aligned.
    """
    basis = torch.eye(size, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    return F.interpolate(basis[None, None], size=(new_size, size), mode=mode, align_corners=False)[0, 0]


def pooling_matrix(size: int, new_size: int, like: Tensor) -> Tensor:
    """Weights of shape (new_size, size) that average one side of a map as adaptive pooling does; see above."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    window, place = (torch.arange(n, device=like.device) for n in (new_size, size))
    start, end = window * size // new_size, ((window + 1) * size + new_size - 1) // new_size
    inside = (place >= start[:, None]) & (place < end[:, None])
    return inside.to(dtype) / (end - start)[:, None].to(dtype)
