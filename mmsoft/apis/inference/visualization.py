"""From images to sheets of what a network sees in them."""
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmsoft.backbones.base import BaseBackbone
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config
from mmsoft.visualization import contact_sheet, overlay
from mmsoft.visualization.seen import bottleneck_kernels, class_activation, feature_image, output_blocks, watch
from .images import png_names
from .prediction import name_results, prepare, refuse_existing
from .tasks import build_task

PLACES = ((.3, .3), (.3, .7), (.7, .3), (.7, .7))
"""Of bottleneck tokens, as parts of height and width."""


def visualize(config: str,
              checkpoint: str,
              source: str,
              out_dir: str,
              stages: Optional[Sequence[int]] = None,
              label: Optional[str] = None,
              device: Optional[str] = None) -> List[Path]:
    """Writes a sheet ``OUT_DIR/vis/….png`` for each image, of what the network sees in the stages of its backbone.

    Args:
        config (str): Config of a detector, segmenter or classifier with a backbone of mmsoft.
        checkpoint (str): Its weights.
        source (str): An image, or a folder of images.
        out_dir (str): Where the sheets go; nothing that is already there is overwritten.
        stages (Sequence[int], optional): Stages, or blocks of a backbone of one stride, counted from 0 as in
            ``out_indices``. Defaults to all stages, or four blocks evenly spread.
        label (str, optional): Name of the class to explain. Defaults to the one with the highest score; for a
            segmenter the largest one.
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
    model = task.inferencer.model.requires_grad_(True)
    if not isinstance(model.backbone, BaseBackbone):
        raise UsageError(f'{config} has the backbone {type(model.backbone).__name__}, which is not one of mmsoft.')
    for module in model.modules():
        if hasattr(module, 'with_cp'):
            module.with_cp = False  # a block that is computed again in the backward pass is seen twice
    count = len(output_blocks(model.backbone))
    if stages is None:
        stages = np.unique(np.linspace(-1, count - 1, min(count, 4) + 1)[1:].astype(int)).tolist()
    if not all(0 <= stage < count for stage in stages):
        raise UsageError(f'--stages are from 0 to {count - 1} for this backbone; got {", ".join(map(str, stages))}.')
    classes = getattr(task.inferencer, 'classes', None) or getattr(model, 'dataset_meta', {}).get('classes', ())
    if label is not None and label not in classes:
        known = ', '.join(classes) or 'the checkpoint has no names of classes'
        raise UsageError(f'There is no class --label {label}; the classes are: {known}.')

    broken: List[Path] = []
    for path, _, prepared in prepare(task, names, broken):
        rows, captions = look(model, task.collate([prepared]), stages, classes, label)
        contact_sheet(rows, captions, out / sheets[names[path]], width=3.)
    print(f'Sheets of {len(names) - len(broken)} of {len(names)} images are in {out}.')
    return broken


def look(model: torch.nn.Module, data: dict, stages: Sequence[int], classes: Sequence[str],
         label: Optional[str] = None) -> Tuple[List[List[np.ndarray]], List[List[str]]]:
    """The rows of a sheet, and a caption for each of their images.

    The first row has the features of each stage, the second what a class depends on, by Grad-CAM. Below are kernels
    of four bottleneck tokens, for each stage with SOFT's attention.

    Args:
        model (nn.Module): A detector, segmenter or classifier, all of whose parameters require gradients.
        data (dict): One image, prepared and collated.
        stages (Sequence[int]): See :func:`visualize`.
        classes (Sequence[str]): Their names.
        label (str, optional): See :func:`visualize`.
    """
    image = np.ascontiguousarray(data['inputs'][0].permute(1, 2, 0).cpu().numpy()[..., ::-1])
    data = model.data_preprocessor(data, False)
    with torch.enable_grad(), watch(model.backbone, stages) as seen:
        out = model(**data, mode='tensor')

    def over_image(heat: Tensor) -> np.ndarray:
        heat = F.interpolate(heat[None, None].float(), data['inputs'].shape[-2:], mode='bilinear')[0, 0]
        return overlay(image, heat[:image.shape[0], :image.shape[1]])  # without padding

    names = [f'stage {index}' if hasattr(model.backbone, 'stages') else f'block {index}' for index in seen]
    rows = [[image, *map(feature_image, seen.values())]]
    captions = [['image', *(f'features of {name}, {record.hw[0]}×{record.hw[1]}'
                            for name, record in zip(names, seen.values()))]]
    explained = explain(model, out, None if label is None else classes.index(label))
    if explained:
        label, score = explained
        rows.append([image, *map(over_image, class_activation(score, list(seen.values())))])
        captions.append([f'what {classes[label] if classes else label} depends on', *names])
    for name, record in zip(names, seen.values()):
        if record.bottleneck is not None:
            kernels = bottleneck_kernels(record, PLACES[:len(names)])
            rows.append([mark(image, *(place for _, place in kernels)),
                         *(mark(over_image(kernel), place) for kernel, place in kernels)])
            captions.append([f'bottleneck kernels, {name}',
                             *(f'{kernel.min():.2g} to {kernel.max():.2g}' for kernel, _ in kernels)])
    blank = np.full_like(image, 255)
    return ([row + [blank] * (len(rows[0]) - len(row)) for row in rows],
            [caption + [''] * (len(rows[0]) - len(caption)) for caption in captions])


def explain(model: torch.nn.Module, out: Any, label: Optional[int] = None) -> Optional[Tuple[int, Tensor]]:
    """A class and its score, from what a model returns with ``mode='tensor'``; None for other detection heads.

    The score is a classifier's log-probability, the sum of a segmenter's logits where the class has the highest one, a
    one-stage detector's highest logit, a two-stage detector's highest log-probability.
    """
    if torch.is_tensor(out):  # scores (1, classes) or (1, classes, H', W')
        logits = out[0].flatten(1) if hasattr(model, 'decode_head') else out.mT.log_softmax(0)
    elif hasattr(model, 'roi_head'):
        logits = out[0][0][0] if isinstance(out[0][0], list) else out[0][0]
        if not torch.is_tensor(logits):
            return None
        logits = logits.log_softmax(-1).mT[:-1]
    elif isinstance(out[0], (list, tuple)):
        logits = torch.cat([level[0].unflatten(0, (-1, model.bbox_head.cls_out_channels)).transpose(0, 1).flatten(1)
                            for level in out[0]], 1)
    else:
        return None
    if hasattr(model, 'decode_head'):
        winner = logits.argmax(0)
        label = int(winner.bincount().argmax()) if label is None else label
        return (label, logits[label][winner == label].sum()) if (winner == label).any() else None
    label = int(logits.max(1).values.argmax()) if label is None else label
    return label, logits[label].max()


def mark(image: np.ndarray, *places: Tuple[float, float]) -> np.ndarray:
    """An image with crosses at parts of its height and width."""
    image, size = image.copy(), max(image.shape) // 16
    for y, x in places:
        at = (round(x * image.shape[1]), round(y * image.shape[0]))
        cv2.drawMarker(image, at, (0, 0, 0), cv2.MARKER_CROSS, size, size // 4 + 2)
        cv2.drawMarker(image, at, (255, 255, 255), cv2.MARKER_CROSS, size, size // 10 + 1)
    return image
