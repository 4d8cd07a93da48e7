"""What a network sees in one image: its feature maps, what a class depends on, and SOFT's bottleneck tokens."""
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from mmsoft.attention.bottleneck import BottleneckTokens
from mmsoft.layers import to_map
from mmsoft.ops.gaussian import gaussian_kernel


@dataclass
class Seen:
    """What passed through one block, the last of a stage where there are stages.

    Attributes:
        before (Tensor): Its input tokens (1, extra + H' · W', C).
        after (Tensor): Its output tokens.
        hw (tuple[int, int]): Rows H' and columns W' of the map.
        queries (Tensor, optional): SOFT's queries as a map (h, d, H', W').
        bottleneck (Tensor, optional): Its bottleneck tokens (h, m, d).
        grid (tuple[int, int], optional): Rows and columns on which these were sampled.
    """
    before: Optional[Tensor] = None
    after: Optional[Tensor] = None
    hw: Tuple[int, int] = (0, 0)
    queries: Optional[Tensor] = None
    bottleneck: Optional[Tensor] = None
    grid: Optional[Tuple[int, int]] = None

    def map(self, tokens: Tensor) -> Tensor:
        """Tokens (1, extra + H' · W', C) without class tokens in front, as a map (C, H', W')."""
        return to_map(tokens[:, tokens.size(1) - self.hw[0] * self.hw[1]:], self.hw)[0]


def output_blocks(backbone: nn.Module) -> List[nn.Module]:
    """The blocks whose outputs ``out_indices`` chooses from, counted from 0."""
    return [stage.blocks[-1] for stage in backbone.stages] if hasattr(backbone, 'stages') else list(backbone.blocks)


@contextmanager
def watch(backbone: nn.Module, indices: Sequence[int]) -> Iterator[Dict[int, Seen]]:
    """Keeps what passes through a backbone's output blocks, by their indices, as long as the context lasts."""
    seen = {index: Seen() for index in indices}

    def hook_for(record: Seen):

        def keep(module: nn.Module, inputs: tuple, output: Tensor) -> None:
            if isinstance(module, BottleneckTokens):
                record.queries, record.bottleneck = inputs[0].detach(), output.detach()
                record.grid = module.grid(record.queries.shape[-2:])
            else:
                record.before, record.hw, record.after = inputs[0], tuple(inputs[1]), output

        return keep

    with ExitStack() as hooks:
        for index, record in seen.items():
            block = output_blocks(backbone)[index]
            for module in [block, *(module for module in block.modules() if isinstance(module, BottleneckTokens))]:
                hooks.callback(module.register_forward_hook(hook_for(record)).remove)
        yield seen


def feature_image(seen: Seen) -> np.ndarray:
    """A map's first three principal components as red, green and blue, (H', W', 3) of uint8: alike features look alike."""
    features = seen.map(seen.after).detach().flatten(1).T.double()
    features = features - features.mean(0)
    _, directions = torch.linalg.eigh(features.T @ features)
    parts = features @ directions[:, -3:].flip(1)
    parts = parts * parts.gather(0, parts.abs().argmax(0, keepdim=True)).sign()
    low, high = parts.quantile(0.01, 0), parts.quantile(0.99, 0)
    parts = ((parts - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return (255 * parts).round().byte().unflatten(0, seen.hw).cpu().numpy()


def class_activation(score: Tensor, records: Sequence[Seen]) -> List[Tensor]:
    """Grad-CAM (1610.02391): where features are that raise a score.

    Where only the class token goes on from a block, the gradient of its other outputs is 0; then its inputs count.

    Args:
        score (Tensor): What to explain, a scalar with a graph.
        records (Sequence[Seen]): What was watched on its way.

    Returns:
        list[Tensor]: A map (H', W') for each record, 0 or more.
    """
    tokens = [tensor for record in records for tensor in (record.after, record.before)]
    gradients = torch.autograd.grad(score, tokens, allow_unused=True, materialize_grads=True)
    maps = []
    for record, after, before in zip(records, gradients[::2], gradients[1::2]):
        at, gradient = (record.after, after) if record.map(after).any() else (record.before, before)
        weights = record.map(gradient).mean((1, 2), keepdim=True)
        maps.append((weights * record.map(at).detach()).sum(0).relu())
    return maps


def bottleneck_kernels(seen: Seen, places: Sequence[Tuple[float, float]]) -> List[Tuple[Tensor, Tuple[float, float]]]:
    r"""Rows of SOFT's kernel, :math:`\exp(-\frac12 \|y_j - x_i\|^2)`: what bottleneck token j attends to.

    Args:
        seen (Seen): Of a SOFT attention.
        places (Sequence[tuple[float, float]]): Where to look for tokens, as parts of the height and width.

    Returns:
        list[tuple[Tensor, tuple[float, float]]]: For each place the kernel (H', W') of the nearest bottleneck token,
        averaged over the heads, and where that token is.
    """
    queries = seen.queries.flatten(2).mT
    rows, columns = seen.grid
    found = []
    for y, x in places:
        row, column = min(int(y * rows), rows - 1), min(int(x * columns), columns - 1)
        token = seen.bottleneck[:, row * columns + column, None]
        kernel = gaussian_kernel(token, queries).mean(0).view(seen.queries.shape[-2:])
        found.append((kernel, ((row + 0.5) / rows, (column + 0.5) / columns)))
    return found
