"""Linformer: keys and values of fewer tokens, at SOFT's ratio."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.layers.embed import PatchConv
from mmsoft.layers.maps import HW, to_map, to_tokens, whole_windows
from mmsoft.registry import MODELS

from .base import Attention, Site


@MODELS.register_module()
class LinformerAttention(Attention):
    r""":math:`\mathrm{softmax}(q (E k)^\top / \sqrt d) \, F v` with E = F (2006.04768, Eq. 7), at any size.

    SOFT compares with Linformer at SOFT's ratio and calls PVT's spatial reduction a special case of it (2110.11945,
    Sec. 4.2). So E is a convolution with the ratio as kernel size and stride. As in SOFT's bottleneck, all heads share
    one d → d filter bank; as in PVT, a LayerNorm follows: the parameters of 2110.11945, Table 1. Class tokens are not
    reduced. Convolutional projections of an architecture are not used.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.ratio = site.ratio
        head_dims = site.dims // site.heads
        self.reduce = PatchConv(head_dims, head_dims, site.ratio, bias=False)
        self.norm = nn.LayerNorm(site.dims)
        self.q = nn.Linear(site.dims, site.dims)
        self.kv = nn.Linear(site.dims, 2 * site.dims)
        self.proj = nn.Linear(site.dims, site.dims)

    def attend(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None) -> Tensor:
        q = self.q(x).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
        extra = x.size(1) - hw[0] * hw[1]  # class tokens; the border of the map fills windows that exceed it
        heads = whole_windows(to_map(x[:, extra:], hw), self.ratio).unflatten(1, (self.num_heads, -1)).flatten(0, 1)
        tokens = to_tokens(self.reduce(heads).unflatten(0, (x.size(0), self.num_heads)).flatten(1, 2))
        few = torch.cat([x[:, :extra], self.norm(tokens)], dim=1)
        k, v = self.kv(few).unflatten(2, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.merge_heads(F.scaled_dot_product_attention(q, k, v))
