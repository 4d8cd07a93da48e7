"""Position embeddings on the grid of the current input."""
import math
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmsoft.ops.numerics import at_least_float32, is_exporting
from .resample import interpolation_matrix


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
        """Encoding of a grid, shape (H' · W', C), or (B, H' · W', C) for grids of which (B, 2) ``extent`` is used."""
        rows, columns = (None, None) if extent is None else extent.unsqueeze(2).unbind(1)
        weight_y, weight_x = self.proj.weight.flatten(1).chunk(2, dim=1)
        y = F.linear(self._waves(hw[0], rows), weight_y, self.proj.bias)
        x = F.linear(self._waves(hw[1], columns), weight_x)
        return (y.unsqueeze(-2) + x.unsqueeze(-3)).flatten(-3, -2)

    def _waves(self, length: int, extent: Optional[Tensor]) -> Tensor:
        """Sine and cosine in turn, shape (length, num_feats), or (B, length, num_feats) for (B, 1) ``extent``."""
        weight = self.proj.weight
        exact = dict(dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
        place = torch.arange(1, length + 1, **exact)
        phase = place / ((place[-1:] if extent is None else extent) + 1e-6) * (2 * math.pi)
        angle = phase.unsqueeze(-1) * self.temperature**(-torch.arange(0, self.num_feats, 2, **exact) / self.num_feats)
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).to(weight.dtype)


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
    if not is_exporting() and tuple(grid) == tuple(hw):
        return pos_embed
    extra = pos_embed.size(1) - grid[0] * grid[1]
    rows, columns = (interpolation_matrix(old, new, pos_embed, mode) for old, new in zip(grid, hw))
    resized = _resample_tokens(pos_embed[0, extra:].unflatten(0, grid), rows, columns).unsqueeze(0)
    return torch.cat([pos_embed[:, :extra], resized], dim=1) if extra else resized


@at_least_float32
def _resample_tokens(image: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(H, W, C) to (H' · W', C) by weights of shape (H', H) and (W', W): channels stay together, as in tokens."""
    image = (rows @ image.flatten(1)).unflatten(1, image.shape[1:])
    return (columns @ image).flatten(0, 1)
