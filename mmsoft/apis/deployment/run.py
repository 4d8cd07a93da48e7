"""From a config and its weights to a file that other programs run."""
import re
from importlib import import_module
from pathlib import Path
from typing import Optional

import torch

from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config
from ..inference.run import build_task
from ..preflight import check_checkpoint
from .describe import describe
from .formats import SUFFIXES, write
from .graphs import Scores


def export(config: str,
           checkpoint: str,
           out: str,
           to: str = 'onnx',
           size: Optional[str] = None,
           force: bool = False) -> str:
    """Writes a whole model as one file, with what a program must know of its pictures, see docs/deployment.md.

    Args:
        config (str): Config of a classifier, segmenter or detector.
        checkpoint (str): Its weights.
        out (str): File to write.
        to (str): ``'onnx'``, or ``'torch'`` for torch.export.
        size (str, optional): The one size of images that the model takes, such as ``'512x683'`` for 512 rows. Defaults
            to None: all, and by torch.export all from 33 pixels that are multiples of what the config pads to.
        force (bool): Whether to replace a file.

    Returns:
        str: What was written, in one sentence.

    Raises:
        UsageError: If files are missing or in the way, options do not fit, or the model is of a kind that cannot be
            exported.
    """
    path = Path(out)
    if path.suffix != SUFFIXES[to]:
        raise UsageError(f'--out {out} should end with {SUFFIXES[to]}, by which exported files are known.')
    if path.exists() and not force:
        raise UsageError(f'{out} exists; add --force to replace it, or choose another --out.')
    if not path.parent.is_dir():
        raise UsageError(f'There is no folder {path.parent} for {path.name}.')
    sides = re.fullmatch(r'(\d+)x(\d+)', size or '256x320')
    if not sides or min(map(int, sides.groups())) < 32:
        raise UsageError(f'--size {size} is no height and width of 32 or more, such as 512x683.')
    height, width = map(int, sides.groups())
    cfg = load_config(config)
    check_checkpoint(checkpoint)
    task = build_task(cfg, checkpoint, 'cpu', None, None, 0.)

    one = cfg.default_scope == 'mmdet'  # non-maximum suppression is of one image
    model = task.inferencer.model
    graph = import_module('.detection', __package__).Detections(model) if one else Scores(model)
    example = (torch.rand(1 if one else 2, 3, height, width), *([torch.tensor([height, width])] if one else []))
    free = (*([] if one else [0]), *([] if size else [2, 3]))
    described, limited = describe(cfg, model), to == 'torch' and not size
    divisor = described['pad_divisor'] if limited else 1
    description = dict(
        described,
        inputs=graph.inputs,
        outputs=graph.outputs,
        size=[height, width] if size else None,
        least_side=graph.least_side if limited else 1,
        side_divisor=divisor)
    write(to, graph.eval(), example, free, description, path, divisor, graph.least_side)
    return f'{out}: {description["task"]} of images of {size or "any size"}, {path.stat().st_size / 1e6:.1f} MB.'
