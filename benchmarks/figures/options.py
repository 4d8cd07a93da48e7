"""What all figures are asked with: pictures, networks and their weights."""
import itertools
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

import mmcv
import numpy as np
import torch
from mmengine.logging import MMLogger
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmsoft.apis.inference.images import BrokenImage, find_images, read_image
from mmsoft.datasets.shapes_scene import draw_scene
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config

_SOFTMAX = dict(type='SoftmaxAttention')

NETWORKS: Dict[str, dict] = dict(
    soft=dict(type='mmsoft.SOFT', arch='tiny', attention_norm=False),
    soft_norm=dict(type='mmsoft.SOFT', arch='tiny'),
    softmax=dict(type='mmsoft.SOFT', arch='tiny', attention=_SOFTMAX),
    performer=dict(type='mmsoft.SOFT', arch='tiny', attention=dict(type='PerformerAttention')),
    nystromformer=dict(type='mmsoft.SOFT', arch='tiny', attention=dict(type='NystromformerAttention')),
    sima_deit=dict(type='mmsoft.SimADeiT', arch='small'),
    deit=dict(type='mmsoft.SimADeiT', arch='small', attention=_SOFTMAX),
)
"""Backbones that figures look into, with random weights unless others are given."""

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class Picture(NamedTuple):
    """A square picture.

    Attributes:
        name: Of its file, or of the scene.
        pixels: (S, S, 3) of uint8, RGB.
        focus: Column and row, from 0 to 1, of what to look at: the largest object, if that is known, or the middle.
    """
    name: str
    pixels: np.ndarray
    focus: Tuple[float, float] = (0.5, 0.5)

    def tensor(self) -> Tensor:
        """As the networks take it, normalised: (1, 3, S, S)."""
        pixels = torch.from_numpy(self.pixels.copy()).float()
        return ((pixels - torch.tensor(MEAN)) / torch.tensor(STD)).permute(2, 0, 1)[None]


class Options(NamedTuple):
    """How to make figures.

    Attributes:
        folder: Of pictures; generated scenes if None.
        count: Most pictures that one figure looks at.
        networks: By keys of :data:`NETWORKS`, a config and a checkpoint of it.
        query: Column and row, from 0 to 1, of the token whose attention is shown; if None, each picture's focus.
        quick: Little of everything: does it run?
    """
    folder: Optional[Path] = None
    count: int = 100
    networks: Dict[str, Tuple[str, str]] = {}
    query: Optional[Tuple[float, float]] = None
    quick: bool = False

    def pictures(self, side: int, most: Optional[int] = None) -> List[Picture]:
        """Pictures of so many rows and columns: of files, the middle; of scenes, all.

        Raises:
            UsageError: If the folder holds none, or a file that is none.
        """
        count = min(self.count, most or self.count, 2 if self.quick else self.count)
        side = min(side, 64) if self.quick else side
        if self.folder is None:
            return [_scene(index, side) for index in range(count)]
        return [_read(path, side) for path in find_images(self.folder, Path('.'))[:count]]

    def network(self, name: str) -> nn.Module:
        """A network in evaluation mode.

        Raises:
            UsageError: If its config has no backbone, or the checkpoint does not fit.
        """
        MMLogger.get_instance('figures', log_level='ERROR')  # of what mmengine says of initial weights
        torch.manual_seed(0)
        cfg = NETWORKS[name]
        if name in self.networks:
            config, checkpoint = self.networks[name]
            model = load_config(config).get('model') or {}
            if 'backbone' not in model:
                raise UsageError(f'{config} has no model with a backbone; give the config that {checkpoint} is of.')
            cfg = dict(model['backbone'], init_cfg=dict(type='Pretrained', checkpoint=checkpoint))
        network = MODELS.build(cfg)
        network.init_weights()
        return network.eval()

    def weights(self, *names: str) -> str:
        """What to say of the weights of networks."""
        random = [name for name in names if name not in self.networks]
        return f'random weights: {", ".join(random)}' if random else 'trained weights'


def _scene(index: int, side: int) -> Picture:
    """A generated scene of several objects, of which the largest covers a twentieth of it at least."""
    for attempt in itertools.count():
        scene = draw_scene(np.random.default_rng([index, attempt]), side, side)
        masks = sorted((instance.mask for instance in scene.instances if not instance.crowd), key=np.sum)
        if len(masks) > 2 and masks[-1].mean() > 0.05:
            break
    rows, columns = np.nonzero(masks[-1])
    nearest = np.hypot(rows - rows.mean(), columns - columns.mean()).argmin()
    focus = ((columns[nearest] + 0.5) / side, (rows[nearest] + 0.5) / side)
    return Picture(f'scene {index}', scene.image[..., ::-1], focus)


def _read(path: Path, side: int) -> Picture:
    try:
        pixels = read_image(path)[..., ::-1]
    except BrokenImage as error:
        raise UsageError(f'{path} is not a picture that can be read ({error}); move it away.') from error
    height, width = pixels.shape[:2]
    scale = side / min(height, width)
    pixels = mmcv.imresize(pixels, (max(side, round(scale * width)), max(side, round(scale * height))),
                           interpolation='area' if scale < 1 else 'bilinear')
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    return Picture(path.name, pixels[top:top + side, left:left + side])
