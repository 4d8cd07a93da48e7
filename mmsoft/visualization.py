"""Images for people: grids, heat maps, and what a network sees: features, and kernels of SOFT's bottleneck tokens."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Union

import matplotlib
import mmcv
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from mmsoft.attention.soft import BottleneckTokens
from mmsoft.ops.gaussian import gaussian_kernel
from mmsoft.utils.files import atomic_write


class Panel(NamedTuple):
    """An RGB image (H, W, 3), its caption, and places to mark, as parts of its height and width."""

    image: np.ndarray
    caption: str = ''
    places: Sequence[tuple[float, float]] = ()


def contact_sheet(rows: Sequence[Sequence[Panel]], path: Union[str, Path], width: float = 4.0) -> Path:
    """Writes a grid of images as one PNG; an earlier file is replaced once the new one is complete.

    Columns are ``width`` inches of 100 pixels; there are as many as the first row has images.
    """
    heights = [max(panel.image.shape[0] / panel.image.shape[1] for panel in row) for row in rows]
    size = width * len(rows[0]), width * sum(heights) + 0.4 * len(rows)
    figure = Figure(figsize=size, dpi=100, layout='compressed')
    axes = figure.subplots(len(rows), len(rows[0]), squeeze=False, gridspec_kw=dict(height_ratios=heights))
    for axis in axes.flat:
        axis.axis('off')
    for axis, panel in ((axis, panel) for line, row in zip(axes, rows) for axis, panel in zip(line, row)):
        axis.imshow(panel.image, interpolation='antialiased')
        axis.set_title(panel.caption, fontsize=3 * width)
        for y, x in panel.places:
            for colour, thickness in (('black', 3), ('white', 1)):
                axis.plot(x * panel.image.shape[1], y * panel.image.shape[0], '+', c=colour, ms=12, mew=thickness)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        figure.savefig(file, format='png')
    return path


def overlay(image: np.ndarray, heat: Union[np.ndarray, Tensor]) -> np.ndarray:
    """Colours an RGB image (H, W, 3) of uint8 by a heat map: high values glow, low ones leave the image in grey.

    ``heat`` (h, w) is resized bilinearly. Its minimum has the lowest colour and its maximum the highest.
    """
    heat = torch.as_tensor(heat).detach().float().cpu().numpy()
    scaled = (heat - heat.min()) / max(heat.max() - heat.min(), 1e-12)
    colours = 255 * matplotlib.colormaps['inferno'](mmcv.imresize(scaled, image.shape[1::-1]))[..., :3]
    return ((image.mean(-1, keepdims=True) + colours) / 2).astype(np.uint8)


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


class Bottleneck(NamedTuple):
    """Queries (h, d, H', W') of one of SOFT's attentions, and the tokens (h, m, d) that were sampled on a grid."""

    queries: Tensor
    tokens: Tensor
    grid: tuple[int, int]

    def kernel(self, y: float, x: float) -> tuple[Tensor, tuple[float, float]]:
        r"""What the token nearest to (y, x) attends to, :math:`\exp(-\frac12 \|b - q_i\|^2)`: a row of SOFT's kernel.

        Places are parts of height and width. Returns the kernel (H', W'), averaged over the heads, and the token's
        place.
        """
        row, column = (min(int(part * count), count - 1) for part, count in zip((y, x), self.grid))
        token = self.tokens[:, row * self.grid[1] + column, None]
        kernel = gaussian_kernel(token, self.queries.flatten(2).mT).mean(0).view(self.queries.shape[2:])
        return kernel, ((row + 0.5) / self.grid[0], (column + 0.5) / self.grid[1])


@contextmanager
def watch_bottlenecks(backbone: nn.Module) -> Iterator[dict[str, Bottleneck]]:
    """Keeps the bottleneck of each of SOFT's attentions, by its name, of one image while the context lasts."""
    seen: dict[str, Bottleneck] = {}
    with ExitStack() as hooks:
        for name, module in backbone.named_modules():
            if isinstance(module, BottleneckTokens):

                def keep(module: BottleneckTokens, inputs: tuple, tokens: Tensor, name: str = name) -> None:
                    queries = inputs[0].detach()
                    seen[name] = Bottleneck(queries, tokens.detach(), module.grid(queries.shape[2:]))

                hooks.callback(module.register_forward_hook(keep).remove)
        yield seen
