"""A pyramid from maps that all have one stride."""

import math
from collections.abc import Sequence
from typing import Optional, Union

from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, ModuleList, Sequential
from torch import Tensor, nn

from mmsoft.layers.embed import is_half_on_cpu
from mmsoft.layers.maps import whole_windows
from mmsoft.registry import MODELS
from mmsoft.utils import OptionError


@MODELS.register_module()
class RescalePyramid(BaseModule):
    """Rescales maps of one stride to a pyramid, as XCiT does before its FPN (published network).

    A level is enlarged by 2×2 transposed convolutions of stride 2, with norm and GELU between them, or reduced by max
    pooling. Pooling rounds up, so odd maps lose no border, and level sizes are ceil-divided as FPN and heads expect.
    mmseg's ``Feature2Pyramid`` computes the same on even maps, for the two published lists of scales.

    Args:
        in_channels (int): Channels of every map.
        rescales (Sequence[float]): Scale of each level, a power of two (else OptionError). (4, 2, 1, 0.5) gives strides
            4, 8, 16, 32 for patches of 16, and (2, 1, 0.5, 0.25) for patches of 8.
        norm_cfg (dict): Norm between transposed convolutions. Defaults to BatchNorm.
        init_cfg (dict or list[dict], optional): See :class:`BaseModule`.

    Example:
        >>> neck = [dict(type='mmsoft.RescalePyramid', in_channels=384),
        ...         dict(type='FPN', in_channels=[384] * 4, out_channels=256, num_outs=5)]
    """

    def __init__(
        self,
        in_channels: int,
        rescales: Sequence[float] = (4, 2, 1, 0.5),
        norm_cfg: dict = dict(type='BN'),
        init_cfg: Optional[Union[dict, list[dict]]] = None,
    ) -> None:
        super().__init__(init_cfg)
        self.levels = ModuleList(_rescale(in_channels, scale, norm_cfg) for scale in rescales)

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Rescales maps (B, C, H, W), one per level or one for all, to (B, C, scale · H, scale · W), or OptionError."""
        if len(inputs) == 1:
            inputs = tuple(inputs) * len(self.levels)
        if len(inputs) != len(self.levels):
            raise OptionError(f'{len(self.levels)} rescales need as many maps, or one; got {len(inputs)}')
        return tuple(level(x).contiguous() for level, x in zip(self.levels, inputs))


class Enlarge(nn.ConvTranspose2d):
    """2×2 transposed convolution of stride 2; a matrix product if :func:`mmsoft.layers.embed.is_half_on_cpu`."""

    bias: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 2, 2)

    def forward(self, x: Tensor, output_size: Optional[list[int]] = None) -> Tensor:
        """Maps of shape (B, C, H, W) to (B, C, 2 · H, 2 · W)."""
        if not is_half_on_cpu(x):
            return super().forward(x, output_size)
        out = (x.permute(0, 2, 3, 1) @ self.weight.flatten(1)).unflatten(3, (-1, 2, 2))
        return out.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3) + self.bias.to(out.dtype)[:, None, None]


class MaxPool(nn.MaxPool2d):
    """Max pooling that rounds up, with operators that every exporter supports at any size."""

    stride: int

    def forward(self, x: Tensor) -> Tensor:
        """Maps of shape (B, C, H, W) to (B, C, ceil(H / stride), ceil(W / stride))."""
        return super().forward(whole_windows(x, self.stride))


def _rescale(channels: int, scale: float, norm_cfg: dict) -> nn.Module:
    steps = round(math.log2(scale)) if scale > 0 else 0
    if 2.0**steps != scale:
        raise OptionError(f'rescales must be powers of two; got {scale}')
    if steps < 0:
        return MaxPool(2**-steps)
    layers: list[nn.Module] = []
    for step in range(steps):
        layers += [build_norm_layer(norm_cfg, channels)[1], nn.GELU()] if step else []
        layers.append(Enlarge(channels))
    return Sequential(*layers)
