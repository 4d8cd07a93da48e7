"""SOFT's and SimA's attention with stochastic depth (`Huang et al. 2016 <https://arxiv.org/abs/1603.09382>`_).

In training, each block attends in a random part of the images; in the others its output is that of attention set to
zero. In tests all images attend, and attention is multiplied by ``1 - drop_rate``. Those that attend in training make
up for the others, so the mean over a batch is the same. Images that go without cost nothing.
"""

from functools import partial
from typing import Any, Callable, Optional

import torch
from torch import Tensor, nn

from mmsoft.attention import SimAAttention, Site, SOFTAttention
from mmsoft.registry import MODELS


@MODELS.register_module()
class StochasticSOFTAttention(SOFTAttention):
    """SOFT with stochastic depth. Crops have few bottleneck tokens: ``bottleneck_limit`` is for tests.

    Args:
        site (Site): The place it is made for.
        drop_rate (float): Part of a batch's images that go without; one image at least attends. Defaults to 0.5.
        **kwargs: See :class:`mmsoft.attention.SOFTAttention`.
    """

    def __init__(self, site: Site, drop_rate: float = 0.5, **kwargs: Any) -> None:
        super().__init__(site, **kwargs)
        self.drop_rate = drop_rate
        self.whole, self.product = self.product, self._of_some
        self.attended = Scaled(1 - drop_rate)

    def _of_some(self, q: Tensor, bottleneck: Tensor, v: Tensor, iterations: int) -> Tensor:
        """The product; in training, zero for a random part of the images."""
        if not self.training:
            return self.whole(q, bottleneck, v, iterations)
        return of_some(partial(self.whole, iterations=iterations), self.drop_rate, q, bottleneck, v)

    def _few(self, bottleneck: Tensor, hw: tuple[int, int]) -> Tensor:
        """See :class:`SOFTAttention`; all of them in training."""
        return bottleneck if self.training else super()._few(bottleneck, hw)


@MODELS.register_module()
class StochasticSimAAttention(SimAAttention):
    """SimA with stochastic depth.

    Args:
        site (Site): The place it is made for.
        drop_rate (float): See :class:`StochasticSOFTAttention`. Defaults to 0.5.
        **kwargs: See :class:`mmsoft.attention.SimAAttention`.
    """

    def __init__(self, site: Site, drop_rate: float = 0.5, **kwargs: Any) -> None:
        super().__init__(site, **kwargs)
        self.drop_rate = drop_rate
        self.attended = Scaled(1 - drop_rate)

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`mmsoft.attention.SimAAttention`; in training, zero for a random part of the images."""
        if not self.training:
            return super().product(q, k, v, mask)
        return of_some(super().product, self.drop_rate, q, k, v, *([] if mask is None else [mask]))


def of_some(product: Callable[..., Tensor], drop_rate: float, q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
    """A product of random images of a batch, enlarged by as much as they are fewer; zero for the others."""
    kept = torch.randperm(len(q), device=q.device)[: max(1, round(len(q) * (1 - drop_rate)))]
    out = product(*(each[kept] for each in (q, k, v, *more))) * (len(q) / len(kept))
    return out.new_zeros(len(q), *out.shape[1:]).index_copy(0, kept, out)


class Scaled(nn.Module):
    """Multiplies a tensor by a number."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """The multiple."""
        return x * self.scale
