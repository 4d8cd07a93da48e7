"""What SOFT's attentions invert, seen by forward hooks."""

import re
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmsoft.attention import SOFTAttention
from mmsoft.ops import gaussian_kernel, soft_norm_attention
from mmsoft.ops.soft import RIDGE, soft_alpha, soft_norm_alpha
from mmsoft.utils import UsageError


class Bottleneck(NamedTuple):
    """What a block of SOFT inverts for the first image of a batch.

    Attributes:
        stage: The block's stage, from 1.
        matrix: A, which is inverted, with SOFT's ridge, shape (h, m, m).
        alpha: Scale of the iteration's starting value, shape (h, 1).
    """

    stage: int
    matrix: Tensor
    alpha: Tensor


@torch.no_grad()
def bottlenecks(network: nn.Module, images: Tensor) -> list[Bottleneck]:
    """What all blocks of SOFT invert in one forward pass, in the order of the network.

    Raises:
        UsageError: If the network has none.
    """
    found: list[Bottleneck] = []
    with ExitStack() as hooks:
        for name, attention in network.named_modules():
            if isinstance(attention, SOFTAttention):
                stage = int(re.search(r'(?:^|\.)stages\.(\d+)\.|$', name)[1] or -1) + 1

                def keep(module: nn.Module, args: tuple, tokens: Tensor, stage=stage, attention=attention) -> None:
                    tokens = tokens.unflatten(0, (-1, attention.num_heads))[:1]
                    if attention.product is soft_norm_attention:
                        matrix = gaussian_kernel(tokens)
                        alpha = soft_norm_alpha(matrix, matrix.sum(-1, keepdim=True))
                    else:
                        matrix = gaussian_kernel(tokens, ridge=RIDGE)
                        alpha = soft_alpha(matrix, RIDGE)
                    alpha = alpha.expand(1, len(matrix[0]), 1, 1)[0, ..., 0]
                    found.append(Bottleneck(stage, matrix[0], alpha))

                hooks.callback(attention.bottleneck.register_forward_hook(keep).remove)
        network(images)
    if not found:
        raise UsageError(
            f'{type(network).__name__} has no SOFTAttention, which this measurement needs; give the '
            'config of a network that has one.'
        )
    return found
