"""Parts of XCiT besides attention: embeddings, blocks, and masks for padded images."""

import math
from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.nn.functional as F
from mmcv.cnn import build_activation_layer, build_norm_layer
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from mmsoft.utils import OptionError

from .blocks import FFN
from .embed import ConvNormAct, PatchConv
from .maps import HW, to_map, to_tokens

NUM_FEATS, TEMPERATURE = 32, 10000.0  # of positions: waves per coordinate, longest over shortest wave


def image_extent(x: Tensor) -> Tensor:
    """Rows and columns of each image before its zero padding.

    Detectors normalise images, pad them with zeros at the right and bottom to the size of the largest, and pass nothing
    else on. Rows and columns of padding are zero in every channel; those of a normalised photograph are not. Maps
    images (B, C, H, W) to int64 (B, 2): sizes up to the last row and column not all zero; of zeros alone, H and W.
    """
    inside = x.ne(0).any(dim=1)
    lines = inside.any(dim=2), inside.any(dim=1)  # rows and columns that are not all zero
    return torch.stack([line.size(1) - line.flip(1).int().argmax(dim=1) for line in lines], dim=1)


def extent_mask(extent: Tensor, hw: Sequence[int]) -> Tensor:
    """Mask of shape (B, 1, H', W') that is true in the first ``extent`` rows and columns, given as (B, 2)."""
    rows, columns = (torch.arange(length, device=extent.device) < extent[:, i, None] for i, length in enumerate(hw))
    return (rows[:, :, None] & columns[:, None, :]).unsqueeze(1)


def attend_inside(attn: nn.Module, x: Tensor, hw: HW, mask: Optional[Tensor], sizes: Optional[list[HW]]) -> Tensor:
    """Calls an attention (see :class:`mmsoft.attention.Attention`), one image at a time if it supports no mask.

    ``sizes`` are then the rows and columns of each image in the mask; the output is zero elsewhere. ``attn`` may be a
    user's module, with or without an attention inside.
    """
    if mask is None or all(getattr(module, 'takes_mask', True) for module in attn.modules()):
        return attn(x, hw, mask)
    assert sizes is not None
    extra, outs = x.size(1) - hw[0] * hw[1], []
    for image, (rows, columns) in zip(x.split(1), sizes):
        tokens = image[:, extra:].unflatten(1, hw)[:, :rows, :columns].flatten(1, 2)
        out = attn(torch.cat([image[:, :extra], tokens], dim=1), (rows, columns))
        if out.size(1) > extra:  # otherwise it has only the class token
            padded = F.pad(out[:, extra:].unflatten(1, (rows, columns)), (0, 0, 0, hw[1] - columns, 0, hw[0] - rows))
            out = torch.cat([out[:, :extra], padded.flatten(1, 2)], dim=1)
        outs.append(out)
    return torch.cat(outs) if outs else x


class ConvPatchEmbed(BaseModule):
    """Patch embedding: 3×3 convolutions of stride 2 that double the channels, and GELU (XCiT, 2106.09681, Sec. 3).

    Any input size works: the map has ceil(H / patch_size) rows. ``patch_size`` is a power of two, 8 or 16 as published,
    and patch_size / 2 divides the channels C = ``embed_dims``; otherwise OptionError.
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, norm_cfg: dict = dict(type='BN')) -> None:
        super().__init__()
        steps = patch_size.bit_length() - 1
        if patch_size != 2**steps or steps == 0 or embed_dims % 2 ** (steps - 1):
            raise OptionError(f'patch_size must be 2, 4, 8, … with a half that divides {embed_dims}; got {patch_size}')
        widths = [in_channels] + [embed_dims // 2**i for i in reversed(range(steps))]
        sizes = zip(widths, widths[1:], [nn.GELU] * (steps - 1) + [nn.Identity])
        self.convs = ModuleList(ConvNormAct(c, wider, 2, norm_cfg, bias=False, act=act) for c, wider, act in sizes)

    def forward(self, x: Tensor, extent: Optional[Tensor] = None) -> tuple[Tensor, Optional[Tensor]]:
        """Maps images (B, in_channels, H, W), and optionally their unpadded sizes, to patches and sizes in patches.

        With ``extent``, each convolution finds zeros beyond an image's end, as if the image were alone.
        """
        for conv in self.convs:
            x = conv(x)
            if extent is not None:
                extent = (extent + 1) // 2
                x = x * extent_mask(extent, x.shape[-2:])
        return x, extent


class FourierPositionEncoding(BaseModule):
    """Sines and cosines of both coordinates, projected to the channels of the tokens (XCiT, published network).

    Coordinates run from 2π / rows to 2π, whatever the grid. ``embed_dims`` are the channels C.
    """

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.proj = PatchConv(2 * NUM_FEATS, embed_dims, 1)

    def forward(self, x: Tensor, extent: Optional[Tensor] = None) -> Tensor:
        """Encoding (1, H' · W', C) of maps (B, C, H', W'), or (B, H' · W', C) if their ``extent`` (B, 2) is given."""
        rows, columns = (None, None) if extent is None else extent.unsqueeze(2).unbind(1)
        waves = self._waves(x, 2, rows).unsqueeze(2), self._waves(x, 3, columns).unsqueeze(1)
        return to_tokens(self.proj(torch.cat(torch.broadcast_tensors(*waves), dim=3).permute(0, 3, 1, 2)))

    def _waves(self, x: Tensor, dim: int, extent: Optional[Tensor]) -> Tensor:
        """Alternating sines and cosines of n places of a side, (1, n, 32), or (B, n, 32) for ``extent`` (B, 1)."""
        exact: dict[str, Any] = dict(dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        place = torch.arange(1, x.size(dim) + 1, **exact)
        phase = place / ((place[-1:, None] if extent is None else extent.to(place)) + 1e-6) * (2 * math.pi)
        angle = phase.unsqueeze(-1) * TEMPERATURE ** (-torch.arange(0, NUM_FEATS, 2, **exact) / NUM_FEATS)
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).to(x.dtype)


class LocalPatchInteraction(BaseModule):
    """Depthwise 3×3 convolution, activation, norm, depthwise 3×3 convolution (XCiT, 2106.09681, Sec. 3)."""

    def __init__(self, embed_dims: int, act_cfg: dict = dict(type='GELU'), norm_cfg: dict = dict(type='BN')) -> None:
        super().__init__()
        # Must be first: mmcv's fuse_conv_bn fuses a norm into the convolution named before it, activation or not.
        self.norm = build_norm_layer(norm_cfg, embed_dims)[1]
        self.conv1 = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)
        self.act = build_activation_layer(act_cfg)
        self.conv2 = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)

    def forward(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None) -> Tensor:
        """Maps tokens (B, n, C) of a map ``hw`` to the same; convolutions see zeros outside a mask (B, 1, H', W')."""
        x = to_map(x, hw)
        x = self.norm(self.act(self.conv1(x if mask is None else x * mask)))
        x = self.conv2(x if mask is None else x * mask)
        return to_tokens(x)


class XCiTBlock(BaseModule):
    """Attention, local patch interaction and FFN, each with a norm before it and a channel-wise scale γ after it.

    As published, γ and norm of the local patch interaction have the number 3, though it comes second. ``lpi=False``
    leaves it out; ``norm_cfg`` is the norm inside it. :func:`attend_inside` calls ``attn``. ``gamma`` is the initial γ;
    ``drop_rate`` and ``drop_path_rate`` are elementwise dropout and stochastic depth of the branches.
    """

    def __init__(
        self,
        attn: nn.Module,
        embed_dims: int,
        gamma: float = 1.0,
        lpi: bool = True,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        act_cfg: dict = dict(type='GELU'),
        norm_cfg: dict = dict(type='BN'),
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.attn = attn
        self.gamma1 = nn.Parameter(gamma * torch.ones(embed_dims))
        self.lpi = LocalPatchInteraction(embed_dims, act_cfg, norm_cfg) if lpi else None
        if lpi:
            self.norm3 = nn.LayerNorm(embed_dims, eps=1e-6)
            self.gamma3 = nn.Parameter(gamma * torch.ones(embed_dims))
        self.norm2 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.ffn = FFN(embed_dims, act_cfg=act_cfg)
        self.gamma2 = nn.Parameter(gamma * torch.ones(embed_dims))
        self.drop = nn.Sequential(nn.Dropout(drop_rate), DropPath(drop_path_rate))

    def forward(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None, sizes: Optional[list[HW]] = None) -> Tensor:
        """Maps tokens of shape (B, n, C), which form a map of shape ``hw``, to the same shape.

        Where ``mask`` is false, tokens neither attend nor interact; see :class:`mmsoft.attention.Attention`.
        """
        x = x + self.drop(self.gamma1 * attend_inside(self.attn, self.norm1(x), hw, mask, sizes))
        if self.lpi is not None:
            x = x + self.drop(self.gamma3 * self.lpi(self.norm3(x), hw, mask))
        return x + self.drop(self.gamma2 * self.ffn(self.norm2(x)))


class ClassAttentionBlock(XCiTBlock):
    """Class attention (CaiT, 2103.17239, Sec. 3): only the class token, the first one, attends.

    The published block also changes the other tokens, and trained weights rely on it: the branch of the attention adds
    γ1·LN1(x) to them, and the branch of the FFN doubles them.

    It is an :class:`XCiTBlock` without local patch interaction and dropout, which uses only the first token that
    ``attn`` returns. With ``norm_tokens``, the second LayerNorm normalises all tokens, otherwise only the class token.
    """

    def __init__(self, attn: nn.Module, embed_dims: int, gamma: float, norm_tokens: bool, act_cfg: dict) -> None:
        super().__init__(attn, embed_dims, gamma, lpi=False, act_cfg=act_cfg)
        self.norm_tokens = norm_tokens

    def forward(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None, sizes: Optional[list[HW]] = None) -> Tensor:
        """Maps tokens (B, 1 + n, C), the class token first, to the same shape; see the class for the other tokens."""
        y = self.norm1(x)
        x = x + self.gamma1 * torch.cat([attend_inside(self.attn, y, hw, mask, sizes)[:, :1], y[:, 1:]], dim=1)
        cls = self.norm2(x[:, :1])
        tokens = self.norm2(x[:, 1:]) if self.norm_tokens else x[:, 1:]
        return torch.cat([cls + self.gamma2 * self.ffn(cls), 2 * tokens], dim=1)
