"""What a network sees in one image: its feature maps, what a score depends on, and what SOFT's landmarks attend to."""
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
        before (Tensor): Its tokens (1, extra + H' · W', C).
        after (Tensor): What it made of them.
        hw (tuple[int, int]): Rows H' and columns W' of the map.
        queries (Tensor, optional): SOFT's queries as a map (h, d, H', W').
        landmarks (Tensor, optional): Its bottleneck tokens (h, m, d).
        grid (tuple[int, int], optional): Rows and columns that these were sampled on.
    """
    before: Optional[Tensor] = None
    after: Optional[Tensor] = None
    hw: Tuple[int, int] = (0, 0)
    queries: Optional[Tensor] = None
    landmarks: Optional[Tensor] = None
    grid: Optional[Tuple[int, int]] = None


def taps(backbone: nn.Module) -> List[nn.Module]:
    """The blocks behind which ``out_indices`` taps a backbone, of whichever body."""
    return [stage.blocks[-1] for stage in backbone.stages] if hasattr(backbone, 'stages') else list(backbone.blocks)


@contextmanager
def watch(backbone: nn.Module, indices: Sequence[int]) -> Iterator[Dict[int, Seen]]:
    """Keeps what passes through a backbone's taps, by their indices, as long as the context lasts."""
    seen = {index: Seen() for index in indices}

    def keep(record: Seen):

        def hook(block: nn.Module, inputs: tuple, output: Tensor) -> None:
            record.before, record.hw, record.after = inputs[0], tuple(inputs[1]), output

        return hook

    def keep_landmarks(record: Seen):

        def hook(bottleneck: BottleneckTokens, inputs: tuple, output: Tensor) -> None:
            record.queries, record.landmarks = inputs[0].detach(), output.detach()
            record.grid = bottleneck.grid(record.queries.shape[-2:])

        return hook

    with ExitStack() as hooks:
        for index, record in seen.items():
            block = taps(backbone)[index]
            hooks.callback(block.register_forward_hook(keep(record)).remove)
            for module in block.modules():
                if isinstance(module, BottleneckTokens):
                    hooks.callback(module.register_forward_hook(keep_landmarks(record)).remove)
        yield seen


def feature_picture(seen: Seen) -> np.ndarray:
    """The three directions in which a map varies most, as red, green and blue: like colours are like features.

    Returns:
        np.ndarray: Shape (H', W', 3) of uint8.
    """
    features = _map(seen.after, seen.hw).detach().flatten(1).T.double()
    features = features - features.mean(0)
    _, directions = torch.linalg.eigh(features.T @ features)
    parts = features @ directions[:, -3:].flip(1)
    parts = parts * parts.gather(0, parts.abs().argmax(0, keepdim=True)).sign()
    low, high = parts.quantile(0.01, 0), parts.quantile(0.99, 0)
    parts = ((parts - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return (255 * parts).round().byte().unflatten(0, seen.hw).cpu().numpy()


def class_activation(score: Tensor, records: Sequence[Seen]) -> List[Tensor]:
    """Grad-CAM (1610.02391): where features are that raise a score, with the reshape that tokens need.

    Where only the class token goes on from a block, the gradient of the others is 0 behind it; then its input counts.

    Args:
        score (Tensor): What to explain, a scalar with a graph.
        records (Sequence[Seen]): What was watched on its way.

    Returns:
        list[Tensor]: A map of shape (H', W') for each, 0 or more.
    """
    tokens = [tensor for record in records for tensor in (record.after, record.before)]
    gradients = torch.autograd.grad(score, tokens, allow_unused=True)
    maps = []
    for record, behind, front in zip(records, gradients[::2], gradients[1::2]):
        at, gradient = record.after, behind
        if behind is None or not _map(behind, record.hw).any():
            at, gradient = record.before, front
        if gradient is None:
            gradient = torch.zeros_like(at)
        weights = _map(gradient, record.hw).mean((1, 2), keepdim=True)
        maps.append((weights * _map(at, record.hw).detach()).sum(0).relu())
    return maps


def landmark_kernels(seen: Seen, places: Sequence[Tuple[float, float]]) -> List[Tuple[Tensor, Tuple[float, float]]]:
    r"""Rows of SOFT's kernel, :math:`\exp(-\frac12 \|y_j - x_i\|^2)` over all tokens i: what landmark j attends to.

    Args:
        seen (Seen): Of a SOFT attention.
        places (Sequence[tuple[float, float]]): Where to look for landmarks, as parts of the height and width.

    Returns:
        list[tuple[Tensor, tuple[float, float]]]: For each place the kernel (H', W') of the nearest landmark, on average
        over the heads, and where that landmark is.
    """
    queries = seen.queries.flatten(2).mT
    rows, columns = seen.grid
    found = []
    for y, x in places:
        row, column = min(int(y * rows), rows - 1), min(int(x * columns), columns - 1)
        landmark = seen.landmarks[:, row * columns + column, None]
        kernel = gaussian_kernel(landmark, queries).mean(0).view(seen.queries.shape[-2:])
        found.append((kernel, ((row + 0.5) / rows, (column + 0.5) / columns)))
    return found


def _map(tokens: Tensor, hw: Tuple[int, int]) -> Tensor:
    """Tokens with or without class tokens in front, (1, extra + H' · W', C), to a map (C, H', W')."""
    return to_map(tokens[:, tokens.size(1) - hw[0] * hw[1]:], hw)[0]
