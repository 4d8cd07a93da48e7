"""What a network sees in one image: its feature maps, and what SOFT's bottleneck tokens attend to."""
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from mmsoft.attention.soft import BottleneckTokens
from mmsoft.layers import to_map
from mmsoft.ops.gaussian import gaussian_kernel


@dataclass
class Seen:
    """What passed through one block, the last of a stage where there are stages.

    Attributes:
        features (Tensor): Its output as a map (C, H', W'), without class tokens.
        queries (Tensor, optional): SOFT's queries as a map (h, d, H', W').
        bottleneck (Tensor, optional): Its bottleneck tokens (h, m, d).
        grid (tuple[int, int], optional): Rows and columns on which these were sampled.
    """
    features: Optional[Tensor] = None
    queries: Optional[Tensor] = None
    bottleneck: Optional[Tensor] = None
    grid: Optional[Tuple[int, int]] = None


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
                rows, columns = inputs[1]
                record.features = to_map(output[:, output.size(1) - rows * columns:], (rows, columns))[0].detach()

        return keep

    with ExitStack() as hooks:
        for index, record in seen.items():
            block = output_blocks(backbone)[index]
            for module in [block, *(module for module in block.modules() if isinstance(module, BottleneckTokens))]:
                hooks.callback(module.register_forward_hook(hook_for(record)).remove)
        yield seen


def feature_image(features: Tensor) -> np.ndarray:
    """The first three principal components of a map (C, H', W') as red, green and blue, (H', W', 3) of uint8."""
    tokens = features.flatten(1).T.double()
    tokens = tokens - tokens.mean(0)
    _, directions = torch.linalg.eigh(tokens.T @ tokens)
    parts = tokens @ directions[:, -3:].flip(1)
    parts = parts * parts.gather(0, parts.abs().argmax(0, keepdim=True)).sign()
    low, high = parts.quantile(0.01, 0), parts.quantile(0.99, 0)
    parts = ((parts - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return (255 * parts).round().byte().unflatten(0, features.shape[1:]).cpu().numpy()


def bottleneck_kernel(seen: Seen, y: float, x: float) -> Tuple[Tensor, Tuple[float, float]]:
    r"""A row of SOFT's kernel, :math:`\exp(-\frac12 \|y_j - x_i\|^2)`: what a bottleneck token j attends to.

    Args:
        seen (Seen): Of a SOFT attention.
        y (float): Where to look for the token, as a part of the height.
        x (float): And of the width.

    Returns:
        tuple[Tensor, tuple[float, float]]: The kernel (H', W') of the nearest token, averaged over the heads, and the
        part of height and width where that token is.
    """
    rows, columns = seen.grid
    row, column = min(int(y * rows), rows - 1), min(int(x * columns), columns - 1)
    token = seen.bottleneck[:, row * columns + column, None]
    kernel = gaussian_kernel(token, seen.queries.flatten(2).mT).mean(0).view(seen.queries.shape[-2:])
    return kernel, ((row + 0.5) / rows, (column + 0.5) / columns)
