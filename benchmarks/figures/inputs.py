"""What figures have in common: images, networks with their weights, colours and panels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmsoft.datasets.shapes_scene import draw_scene
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config

# The colours of Okabe and Ito, which colour-blind readers can tell apart.
BLACK, ORANGE, GREEN, BLUE, RED = '#000000', '#E69F00', '#009E73', '#0072B2', '#D55E00'
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)

NETWORKS = {
    name: dict(type='mmsoft.SOFT', arch='tiny', attention_norm=norm)
    for name, norm in (('soft', False), ('soft_norm', True))
}
"""Backbones that figures look into, with random weights unless others are given."""


def trained(config: str, checkpoint: str) -> dict[str, Any]:
    """The config of the backbone of a trained network."""
    model = load_config(config).get('model') or {}
    if 'backbone' not in model:
        raise UsageError(f'{config} has no model with a backbone; give the config of {checkpoint}.')
    return dict(model['backbone'], _scope_='mmsoft', init_cfg=dict(type='Pretrained', checkpoint=checkpoint))


def build(cfg: dict[str, Any]) -> nn.Module:
    """A backbone in evaluation mode, with its weights or the same random ones each time."""
    torch.manual_seed(0)
    network = MODELS.build(cfg)
    network.init_weights()
    return network.eval().requires_grad_(False)


def normalised(image: Tensor) -> Tensor:
    """An RGB image (H, W, 3) from 0 to 255 as networks take it, (1, 3, H, W)."""
    return ((image - torch.tensor(MEAN)) / torch.tensor(STD)).permute(2, 0, 1)[None]


def scenes(side: int, count: int) -> list[Tensor]:
    """Synthetic scenes of ``side`` rows and columns, normalised as the networks take them: (1, 3, side, side)."""
    drawn = (draw_scene(np.random.default_rng(index), side, side).image[..., ::-1] for index in range(count))
    return [normalised(torch.from_numpy(image.copy()).float()) for image in drawn]


def new_figure(
    rows: int, columns: int, width: float, height: float, title: str, **options
) -> tuple[Figure, np.ndarray]:
    """A figure and its panels, of shape (rows, columns); a panel's width and height are in inches."""
    figure = Figure(figsize=(columns * width, rows * height), layout='constrained')
    figure.suptitle(title, fontsize=11)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def plain(panel: Axes, ticks: Sequence[float] = (), **settings) -> None:
    """Axes of a diagram: a grid, no frame, what :meth:`Axes.set` sets, and numbers at these ticks of x alone."""
    panel.set(**settings)
    if ticks:
        panel.set_xticks(ticks, ticks, fontsize=8)
        panel.set_xticks([], minor=True)
    panel.title.set_fontsize(10)
    panel.grid(alpha=0.25)
    panel.spines[['top', 'right']].set_visible(False)


def end_label(panel: Axes, text: str, x: float, y: float, colour: str, dy: float = 0) -> None:
    """The name of a line at its right end, ``dy`` points higher."""
    panel.annotate(text, (x, y), (6, dy), textcoords='offset points', color=colour, fontsize=9, va='center')
