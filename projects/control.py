"""The control: SOFT without its attention."""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.attention import SOFTAttention
from mmsoft.layers.maps import to_map, to_tokens
from mmsoft.registry import MODELS


@MODELS.register_module()
class WithoutAttention(SOFTAttention):
    """SOFT's attention, of which the depthwise convolution of the values alone is left."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.query
        self.bottleneck = nn.Identity()  # never called; what measures attention looks for it

    def attend(self, x: Tensor, hw: tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`SOFTAttention`."""
        v = to_map(self.value(x), hw)
        filters = self.conv.weight.repeat_interleave(v.size(1) // self.num_heads, 0)
        local = to_tokens(F.conv2d(v, filters, padding=self.conv.padding, groups=v.size(1)))
        return self.proj(self.attended(torch.zeros_like(local)) + local)
