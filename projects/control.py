"""The control: SOFT without its attention."""

from typing import Any, Optional

import torch
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
        local = to_tokens(self.conv(to_map(self.value(x), hw)))
        return self.proj(self.attended(torch.zeros_like(local)) + local)
