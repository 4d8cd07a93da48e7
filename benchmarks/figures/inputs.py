"""What all figures have in common: images, networks with their weights, colours and panels."""
import itertools
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import mmcv
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmsoft.datasets.shapes_scene import draw_scene
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config
from ..common import be_quiet

# The colours of Okabe and Ito, which colour-blind readers can tell apart.
BLACK, ORANGE, GREEN, BLUE, RED = '#000000', '#E69F00', '#009E73', '#0072B2', '#D55E00'
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
MOST = 100  # images of one figure


def _tiny(**options) -> dict:
    return dict(type='mmsoft.SOFT', arch='tiny', **options)


_SOFTMAX = dict(type='SoftmaxAttention')
NETWORKS: Dict[str, dict] = dict(
    soft=_tiny(attention_norm=False), soft_norm=_tiny(), softmax=_tiny(attention=_SOFTMAX),
    performer=_tiny(attention=dict(type='PerformerAttention')),
    nystromformer=_tiny(attention=dict(type='NystromformerAttention')),
    sima_deit=dict(type='mmsoft.SimADeiT', arch='small'),
    deit=dict(type='mmsoft.SimADeiT', arch='small', attention=_SOFTMAX))
"""Backbones that figures look into, with random weights unless others are given."""


class Image(NamedTuple):
    """A square image: its name, RGB pixels (S, S, 3) of uint8, and column and row, from 0 to 1, of what to look at."""
    name: str
    pixels: np.ndarray
    focus: Tuple[float, float] = (0.5, 0.5)

    def tensor(self) -> Tensor:
        """Normalised, as the networks take it: (1, 3, S, S)."""
        pixels = torch.from_numpy(self.pixels.copy()).float()
        return ((pixels - torch.tensor(MEAN)) / torch.tensor(STD)).permute(2, 0, 1)[None]


class Inputs(NamedTuple):
    """What figures are made of.

    Attributes:
        folder: Of images; None for generated scenes.
        networks: By keys of :data:`NETWORKS`, a config and a checkpoint of it.
        quick: Small and few inputs.
    """
    folder: Optional[Path] = None
    networks: Dict[str, Tuple[str, str]] = {}
    quick: bool = False

    def images(self, side: int, most: int = MOST) -> List[Image]:
        """Images of ``side`` rows and columns: the middle of files, or whole scenes."""
        count, side = (min(most, 2), min(side, 64)) if self.quick else (most, side)
        if self.folder is None:
            return [_scene(index, side) for index in range(count)]
        paths = sorted(path for path in self.folder.glob('*') if path.suffix.lower() in ('.jpg', '.jpeg', '.png'))
        if not paths:
            raise UsageError(f'{self.folder} holds no images; give a folder of .jpg or .png files.')
        return [_read(path, side) for path in paths[:count]]

    def network(self, name: str) -> nn.Module:
        """A network in evaluation mode."""
        be_quiet()
        torch.manual_seed(0)
        cfg = NETWORKS[name]
        if name in self.networks:
            config, checkpoint = self.networks[name]
            model = load_config(config).get('model') or {}
            if 'backbone' not in model:
                raise UsageError(f'{config} has no model with a backbone; give the config of {checkpoint}.')
            cfg = dict(model['backbone'], init_cfg=dict(type='Pretrained', checkpoint=checkpoint))
        network = MODELS.build(cfg)
        network.init_weights()
        return network.eval()

    def weights(self, *names: str) -> str:
        """How a figure calls the weights of networks."""
        random = [name for name in names if name not in self.networks]
        return f'random weights: {", ".join(random)}' if random else 'trained weights'


def _scene(index: int, side: int) -> Image:
    """A generated scene of several objects, of which the largest covers a twentieth at least; it is the focus."""
    for attempt in itertools.count():
        scene = draw_scene(np.random.default_rng([index, attempt]), side, side)
        masks = sorted((instance.mask for instance in scene.instances if not instance.crowd), key=np.sum)
        if len(masks) > 2 and masks[-1].mean() > 0.05:
            break
    rows, columns = np.nonzero(masks[-1])
    nearest = np.hypot(rows - rows.mean(), columns - columns.mean()).argmin()
    focus = ((columns[nearest] + 0.5) / side, (rows[nearest] + 0.5) / side)
    return Image(f'scene {index}', scene.image[..., ::-1], focus)


def _read(path: Path, side: int) -> Image:
    pixels = mmcv.imread(str(path))
    if pixels is None:
        raise UsageError(f'{path} is not an image that can be read; move it away.')
    height, width = pixels.shape[:2]
    size = [max(side, round(side / min(height, width) * extent)) for extent in (width, height)]
    pixels = mmcv.imresize(pixels, size, interpolation='area')[..., ::-1]
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    return Image(path.name, pixels[top:top + side, left:left + side])


def new_figure(rows: int, columns: int, width: float, height: float, title: str,
               **options) -> Tuple[Figure, np.ndarray]:
    """A figure and its panels, of shape (rows, columns); a panel's width and height are in inches."""
    figure = Figure(figsize=(columns * width, rows * height), layout='constrained')
    FigureCanvasAgg(figure)
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


def show(panel: Axes, pixels: np.ndarray) -> None:
    """An image whose corners are at 0 and 1."""
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(False)
    panel.imshow(pixels, extent=(0, 1, 1, 0))
