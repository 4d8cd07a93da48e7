"""The control: SOFT without its attention."""

from typing import Any, Optional

from torch import Tensor

from mmsoft.attention import SOFTAttention
from mmsoft.registry import MODELS


@MODELS.register_module()
class WithoutAttention(SOFTAttention):
    """SOFT's attention, of which the depthwise convolution of the values alone is left."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.query, self.bottleneck

    def attend(self, x: Tensor, hw: tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`SOFTAttention`."""
        return self.proj(self._convolve(self.value(x), hw))
