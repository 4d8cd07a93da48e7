"""From a config and its weights to a file that other programs run."""
import re
from importlib import import_module
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

import torch
from mmengine.config import Config
from torch import Tensor, nn

from mmsoft.layers.maps import pooling_matrix, resample
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config, type_name
from mmsoft.version import __version__
from ..inference.tasks import build_task
from .formats import MIN_SIDE, SUFFIXES, write

TASKS = dict(mmdet='detection', mmseg='segmentation', mmpretrain='classification')


def export(config: str,
           checkpoint: str,
           out: str,
           to: str = 'onnx',
           size: Optional[str] = None,
           force: bool = False) -> str:
    """Writes a whole model as one file, with a description of its images; see docs/deployment.md.

    Args:
        config (str): Config of a classifier, segmenter or detector.
        checkpoint (str): Its weights.
        out (str): File to write.
        to (str): ``'onnx'``, or ``'torch'`` for torch.export.
        size (str, optional): The one size of images that the model takes, such as ``'512x683'`` for 512 rows. Defaults
            to None: any; for torch.export, any from 33 pixels that is a multiple of what the config pads to.
        force (bool): Whether to replace a file.

    Returns:
        str: One sentence that says what was written.

    Raises:
        UsageError: If files are missing or exist already, options do not fit, the model cannot be exported, or the
            file does not give the model's results.
    """
    path = Path(out)
    if path.suffix != SUFFIXES[to]:
        raise UsageError(f'--out {out} must end with {SUFFIXES[to]}.')
    if path.exists() and not force:
        raise UsageError(f'{out} exists; add --force to replace it, or choose another --out.')
    if not path.parent.is_dir():
        raise UsageError(f'There is no folder {path.parent} for {path.name}.')
    sides = re.fullmatch(r'(\d+)x(\d+)', size or '256x320')
    if not sides or min(map(int, sides.groups())) < 32:
        raise UsageError(f'--size {size} is not a height and width of at least 32, such as 512x683.')
    height, width = map(int, sides.groups())
    cfg = load_config(config)
    model = build_task(cfg, checkpoint, 'cpu').inferencer.model

    one = cfg.default_scope == 'mmdet'  # mmdet suppresses boxes image by image
    graph = import_module('.detection', __package__).Detections(model) if one else Scores(model)
    example = (torch.rand(1 if one else 2, 3, height, width), *([torch.tensor([height, width])] if one else []))
    free = (*([] if one else [0]), *([] if size else [2, 3]))
    described, limited = describe(cfg, model), to == 'torch' and not size
    divisor = described['pad_divisor'] if limited else 1
    described.update(
        inputs=graph.inputs,
        outputs=graph.outputs,
        size=[height, width] if size else None,
        least_side=graph.min_side if limited else 1,
        side_divisor=divisor)
    write(to, graph.eval(), example, free, described, path, divisor, graph.min_side)
    return f'{out}: {described["task"]} of images of {size or "any size"}, {path.stat().st_size / 1e6:.1f} MB.'


def describe(cfg: Config, model: nn.Module) -> Dict[str, Any]:
    """What a program must know to use a file: how images become its input, and what its labels mean."""
    settings = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    divisor = settings.get('pad_size_divisor') or settings.get('size_divisor') or (
        settings.get('test_cfg') or {}).get('size_divisor')
    meta = getattr(model, 'dataset_meta', None) or getattr(model, '_dataset_meta', None) or {}
    return dict(
        task=TASKS[cfg.default_scope],
        channel_order='RGB' if settings.get('bgr_to_rgb') or settings.get('to_rgb') else 'BGR',
        mean=settings.get('mean'),
        std=settings.get('std'),
        pad_divisor=divisor or 1,
        pipeline=[step for step in cfg.test_dataloader.dataset.pipeline if not re.search('Load|Pack', type_name(step))],
        dataset_meta={key: meta[key] for key in ('classes', 'palette') if meta.get(key)},
        mmsoft=__version__)


class Scores(nn.Module):
    """A classifier or segmenter up to its scores before softmax, at the head's resolution.

    Args:
        model (nn.Module): A model of mmpretrain or mmseg; its adaptive pooling is replaced.
    """

    inputs: Tuple[str, ...] = ('images', )
    outputs: Tuple[str, ...] = ('logits', )
    min_side: int = MIN_SIDE

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        for module in list(model.modules()):
            for name, child in module.named_children():
                if type(child) is nn.AdaptiveAvgPool2d and child.output_size not in (1, (1, 1)):
                    setattr(module, name, Pool(child.output_size))

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (B, 3, H, W) to scores (B, classes), or (B, classes, H', W') of a segmenter."""
        return self.model(images, mode='tensor')


class Pool(nn.AdaptiveAvgPool2d):
    """Adaptive average pooling as two matrix products, as ONNX has no operator for maps of any size."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps of shape (B, C, H, W) to (B, C, \\*output_size)."""
        size = self.output_size if isinstance(self.output_size, tuple) else (self.output_size, ) * 2
        return resample(x, *(pooling_matrix(n, new, x) for n, new in zip(x.shape[2:], size)))
