"""From images to sheets of what a network sees in them."""
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.backbones.base import BaseBackbone
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config
from mmsoft.visualization import contact_sheet, overlay
from mmsoft.visualization.seen import bottleneck_kernel, feature_image, output_blocks, watch
from .images import png_names
from .prediction import name_results, prepare, refuse_existing
from .tasks import build_task

PLACES = ((.3, .3), (.3, .7), (.7, .3), (.7, .7))
"""Of bottleneck tokens, as parts of height and width."""


def visualize(config: str, checkpoint: str, source: str, out_dir: str, stages: Optional[Sequence[int]] = None,
              device: Optional[str] = None) -> List[Path]:
    """Writes a sheet ``OUT_DIR/vis/….png`` for each image, of what the network sees in the stages of its backbone.

    Args:
        config (str): Config of a detector, segmenter or classifier with a backbone of mmsoft.
        checkpoint (str): Its weights.
        source (str): An image, or a folder of images.
        out_dir (str): Where the sheets go; nothing that is already there is overwritten.
        stages (Sequence[int], optional): Stages, or blocks of a backbone of one stride, counted from 0 as in
            ``out_indices``. Defaults to all stages, or four blocks evenly spread.
        device (str, optional): ``'cpu'``, ``'cuda:0'``, …. Defaults to None: the best there is.

    Returns:
        list[Path]: Broken images, which were named and skipped.

    Raises:
        UsageError: If files are missing, results exist already or options do not fit.
    """
    cfg, out = load_config(config), Path(out_dir, 'vis')
    names = name_results(source, Path(out_dir))
    sheets = png_names(list(names.values()))
    refuse_existing(out / sheet for sheet in sheets.values())
    task = build_task(cfg, checkpoint, device)
    model = task.inferencer.model
    if not isinstance(model.backbone, BaseBackbone):
        raise UsageError(f'{config} has the backbone {type(model.backbone).__name__}, which is not one of mmsoft.')
    count = len(output_blocks(model.backbone))
    if stages is None:
        stages = np.unique(np.linspace(-1, count - 1, min(count, 4) + 1)[1:].astype(int)).tolist()
    if not all(0 <= stage < count for stage in stages):
        raise UsageError(f'--stages are from 0 to {count - 1} for this backbone; got {", ".join(map(str, stages))}.')

    broken: List[Path] = []
    for path, _, prepared in prepare(task, names, broken):
        rows, captions = look(model, task.collate([prepared]), stages)
        contact_sheet(rows, captions, out / sheets[names[path]], width=3.)
    print(f'Sheets of {len(names) - len(broken)} of {len(names)} images are in {out}.')
    return broken


@torch.no_grad()
def look(model: nn.Module, data: dict, stages: Sequence[int]) -> Tuple[List[List[np.ndarray]], List[List[str]]]:
    """The rows of a sheet, and a caption for each of their images.

    The first row has the features of each stage. Below are kernels of four bottleneck tokens, for each stage with
    SOFT's attention.

    Args:
        model (nn.Module): A detector, segmenter or classifier.
        data (dict): One image, prepared and collated.
        stages (Sequence[int]): See :func:`visualize`.
    """
    image = np.ascontiguousarray(data['inputs'][0].permute(1, 2, 0).cpu().numpy()[..., ::-1])
    images = model.data_preprocessor(data, False)['inputs']
    with watch(model.backbone, stages) as seen:
        model.backbone(images)

    def mark(image: np.ndarray, *places: Tuple[float, float]) -> np.ndarray:
        image, size = image.copy(), max(images.shape) // 16
        for y, x in places:
            at = round(x * images.shape[3]), round(y * images.shape[2])
            cv2.drawMarker(image, at, (0, 0, 0), cv2.MARKER_CROSS, size, size // 4 + 2)
            cv2.drawMarker(image, at, (255, 255, 255), cv2.MARKER_CROSS, size, size // 10 + 1)
        return image

    def over_image(heat: Tensor) -> np.ndarray:
        heat = F.interpolate(heat[None, None].float(), images.shape[2:], mode='bilinear')[0, 0]
        return overlay(image, heat[:image.shape[0], :image.shape[1]])  # without padding

    kind = 'stage' if hasattr(model.backbone, 'stages') else 'block'
    rows = [[image, *(feature_image(record.features) for record in seen.values())]]
    captions = [['image', *('features of {} {}, {}×{}'.format(kind, index, *record.features.shape[1:])
                            for index, record in seen.items())]]
    for index, record in seen.items():
        if record.bottleneck is not None:
            kernels = [bottleneck_kernel(record, *place) for place in PLACES[:len(stages)]]
            rows.append([mark(image, *(place for _, place in kernels)),
                         *(mark(over_image(kernel), place) for kernel, place in kernels)])
            captions.append([f'bottleneck kernels, {kind} {index}',
                             *(f'{kernel.min():.2g} to {kernel.max():.2g}' for kernel, _ in kernels)])
    blank, columns = np.full_like(image, 255), len(rows[0])
    return ([row + [blank] * (columns - len(row)) for row in rows],
            [caption + [''] * (columns - len(caption)) for caption in captions])
