"""Spectral norms of SOFT's attention, which attention normalisation is to keep from growing with the image."""
from contextlib import ExitStack
from typing import Callable, List
from unittest import mock

import torch
from torch import Tensor, nn

from mmsoft.attention import SOFTAttention

STEPS = 50


@torch.no_grad()
def attention_norms(network: nn.Module, images: Tensor) -> List[float]:
    r""":math:`\|\hat S\|_2` of the matrix by which a SOFT multiplies its values (2207.03341, Sec. 3.3).

    It is symmetric and positive semidefinite, and is multiplied by vectors alone, as the network does it.

    Args:
        network (SOFT): A backbone in eval mode.
        images (Tensor): Shape (B, 3, H, W).

    Returns:
        list[float]: For each stage with such attention, the mean over images, blocks and heads.
    """
    norms: List[List[float]] = [[] for _ in network.stages]
    with ExitStack() as patches:
        for stage, seen in zip(network.stages, norms):
            for attn in stage.modules():
                if isinstance(attn, SOFTAttention):
                    patches.enter_context(mock.patch.object(attn, 'product', _measured(attn.product, seen)))
        network(images)
    return [sum(seen) / len(seen) for seen in norms if seen]


def _measured(product: Callable[..., Tensor], norms: List[float]) -> Callable[..., Tensor]:
    """A product that notes the norm of its matrix."""

    def multiply(q: Tensor, bottleneck: Tensor, v: Tensor, **options) -> Tensor:
        x = torch.ones_like(v[..., :1])
        for _ in range(STEPS):
            x = product(q, bottleneck, x / x.norm(dim=-2, keepdim=True), **options)
        norms.extend(x.norm(dim=-2).flatten().tolist())
        return product(q, bottleneck, v, **options)

    return multiply
