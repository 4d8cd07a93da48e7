"""Images for people: grids, heat maps, and what a network sees: features, and kernels of SOFT's bottleneck tokens."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

import matplotlib
import mmcv
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from mmsoft.attention.soft import BottleneckTokens
from mmsoft.layers import to_map
from mmsoft.ops.gaussian import gaussian_kernel
from mmsoft.utils.files import atomic_write


def contact_sheet(
    rows: Sequence[Sequence[np.ndarray]],
    titles: Sequence[Union[str, Sequence[str]]],
    path: Union[str, Path],
    width: float = 4.0,
) -> Path:
    """Writes a grid of images as one PNG; an earlier file is replaced once the new one is complete.

    Args:
        rows (Sequence[Sequence[np.ndarray]]): RGB images of shape (H, W, 3), as many in each row as titles.
        titles (Sequence[str] or Sequence[Sequence[str]]): Captions of the columns, or of each image.
        path (str or Path): The file.
        width (float): Width of a column in inches, of 100 pixels each.

    Returns:
        Path: The file.

    Raises:
        ValueError: If there are no rows, or one does not have as many images as titles.
    """
    titles = [titles] if isinstance(titles[0], str) else titles
    columns = len(titles[0])
    if not rows or any(len(row) != columns for row in rows):
        raise ValueError(f'a contact sheet needs at least one row, and {columns} images in each')
    heights = [max(image.shape[0] / image.shape[1] for image in row) for row in rows]
    size = width * columns, width * sum(heights) + 0.1 + 0.3 * len(titles)
    figure = Figure(figsize=size, dpi=100, layout='compressed')
    axes = figure.subplots(len(rows), columns, squeeze=False, gridspec_kw=dict(height_ratios=heights))
    for axis, title in zip(axes.flat, (title for row in titles for title in row)):
        axis.set_title(title, fontsize=3 * width)
    for axis, image in zip(axes.flat, (image for row in rows for image in row)):
        axis.imshow(image, interpolation='antialiased')
        axis.axis('off')
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        figure.savefig(file, format='png')
    return path


def overlay(
    image: np.ndarray, heat: Union[np.ndarray, Tensor], peak: Optional[float] = None, opacity: float = 0.5
) -> np.ndarray:
    """Colours an image by a heat map: high values glow, low ones leave the image in grey.

    Args:
        image (np.ndarray): RGB, shape (H, W, 3) of uint8; so is the result.
        heat (np.ndarray or Tensor): Shape (h, w); it is resized bilinearly. Its minimum has the lowest colour.
        peak (float, optional): The value of the highest colour, for maps to be compared. Defaults to the maximum.
        opacity (float): Of the colours.
    """
    heat = torch.as_tensor(heat).detach().float().cpu().numpy()
    low, high = heat.min(), heat.max() if peak is None else peak
    scaled = np.clip((heat - low) / max(high - low, 1e-12), 0, 1)
    colours = 255 * matplotlib.colormaps['inferno'](mmcv.imresize(scaled, image.shape[1::-1]))[..., :3]
    return ((1 - opacity) * image.mean(-1, keepdims=True) + opacity * colours).astype(np.uint8)


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
    grid: Optional[tuple[int, int]] = None

    def hook(self, module: nn.Module, inputs: tuple, output: Tensor) -> None:
        """Of a block, and of the module in it that samples bottleneck tokens."""
        if isinstance(module, BottleneckTokens):
            self.queries, self.bottleneck = inputs[0].detach(), output.detach()
            self.grid = module.grid(self.queries.shape[-2:])
        else:
            rows, columns = inputs[1]
            self.features = to_map(output[:, output.size(1) - rows * columns :], (rows, columns))[0].detach()


def output_blocks(backbone: nn.Module) -> list[nn.Module]:
    """The blocks whose outputs ``out_indices`` chooses from, counted from 0."""
    return [stage.blocks[-1] for stage in backbone.stages] if hasattr(backbone, 'stages') else list(backbone.blocks)


@contextmanager
def watch(backbone: nn.Module, indices: Sequence[int]) -> Iterator[dict[int, Seen]]:
    """Keeps what passes through a backbone's output blocks, by their indices, as long as the context lasts."""
    seen = {index: Seen() for index in indices}
    with ExitStack() as hooks:
        for index, record in seen.items():
            block = output_blocks(backbone)[index]
            for module in [block, *(one for one in block.modules() if isinstance(one, BottleneckTokens))]:
                hooks.callback(module.register_forward_hook(record.hook).remove)
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


def bottleneck_kernel(seen: Seen, y: float, x: float) -> tuple[Tensor, tuple[float, float]]:
    r"""A row of SOFT's kernel, :math:`\exp(-\frac12 \|y_j - x_i\|^2)`: what a bottleneck token j attends to.

    The token is the one nearest to (y, x), parts of height and width. Returns its kernel (H', W'), averaged over the
    heads, and where it is.
    """
    rows, columns = seen.grid
    row, column = min(int(y * rows), rows - 1), min(int(x * columns), columns - 1)
    token = seen.bottleneck[:, row * columns + column, None]
    kernel = gaussian_kernel(token, seen.queries.flatten(2).mT).mean(0).view(seen.queries.shape[-2:])
    return kernel, ((row + 0.5) / rows, (column + 0.5) / columns)
