"""What SOFT's attentions invert, seen by forward hooks, and what Newton's steps leave of the inverse."""

from contextlib import ExitStack
from typing import NamedTuple, Union

import torch
from torch import Tensor, nn

from mmsoft.attention import SOFTAttention
from mmsoft.attention.measure import stage_of
from mmsoft.ops import gaussian_kernel, soft_norm_attention
from mmsoft.ops.soft import RIDGE, soft_alpha, soft_norm_alpha
from mmsoft.utils import UsageError


class Bottleneck(NamedTuple):
    """What a block of SOFT inverts for the first image of a batch.

    Attributes:
        stage: The block's stage, from 0.
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
    seen: list[tuple[str, SOFTAttention, Tensor]] = []
    with ExitStack() as hooks:
        for name, one in network.named_modules():
            if isinstance(one, SOFTAttention):
                hook = one.bottleneck.register_forward_hook(
                    lambda module, args, out, name=name, one=one: seen.append((name, one, out))
                )
                hooks.callback(hook.remove)
        network(images)
    if not seen:
        kind = type(network).__name__
        raise UsageError(f'{kind} has no SOFTAttention, which this measurement needs; give a config that has one.')
    return [Bottleneck(stage_of(name), *_inverted(one, tokens)) for name, one, tokens in seen]


def _inverted(attention: SOFTAttention, tokens: Tensor) -> tuple[Tensor, Tensor]:
    tokens = tokens.unflatten(0, (-1, attention.num_heads))[:1]
    if attention.product is soft_norm_attention:
        matrix = gaussian_kernel(tokens)
        alpha = soft_norm_alpha(matrix, matrix.sum(-1, keepdim=True))
    else:
        matrix = gaussian_kernel(tokens, ridge=RIDGE)
        alpha = soft_alpha(matrix.sum(-1, keepdim=True) - RIDGE)
    return matrix[0], alpha.expand(1, len(matrix[0]), 1, 1)[0, ..., 0]


def log_missing(eigenvalues: Tensor, alpha: Tensor, steps: Union[int, Tensor]) -> Tensor:
    r"""Logarithm of what k steps leave, :math:`|1 - \lambda_i(A) \lambda_i(A_k)| = |1 - \alpha \lambda_i^2|^{2^k}`.

    Nothing is iterated, since :math:`A_k` has A's eigenvectors.
    """
    x = alpha * eigenvalues.square()
    return 2.0**steps * torch.where(x > 0.5, (1 - x).abs().log(), torch.log1p(-x.clamp(max=0.5)))
