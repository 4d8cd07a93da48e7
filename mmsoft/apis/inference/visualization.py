"""From pictures to sheets of what a network sees in them."""
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor

from mmsoft.backbones.base import BaseBackbone
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config
from mmsoft.visualization import contact_sheet, overlay
from mmsoft.visualization.seen import class_activation, feature_picture, landmark_kernels, taps, watch
from ..preflight import check_checkpoint
from .images import find_images
from .run import build_task, check_device, prepare

#: Where landmarks are looked for, as parts of height and width.
PLACES = ((.3, .3), (.3, .7), (.7, .3), (.7, .7))


def visualize(config: str,
              checkpoint: str,
              source: str,
              out_dir: str,
              stages: Optional[Sequence[int]] = None,
              label: Optional[str] = None,
              device: Optional[str] = None) -> List[Path]:
    """Writes a sheet ``OUT_DIR/vis/….png`` for each picture, of what the network sees in the stages of its backbone.

    Its rows: the features of each stage, by :func:`mmsoft.visualization.seen.feature_picture`; what a class depends on,
    by Grad-CAM; and for each stage with SOFT's attention the kernel of four landmarks. The class's score is a
    classifier's logarithm of its probability; a segmenter's scores where it found the class; a two-stage detector's
    confidence in all boxes of the class, a one-stage detector's as many greatest logits.

    Args:
        config (str): Config of a detector, segmenter or classifier with a backbone of mmsoft.
        checkpoint (str): Its weights.
        source (str): A picture, or a folder of them.
        out_dir (str): Where the sheets go; nothing that is already there is overwritten.
        stages (Sequence[int], optional): Stages, or blocks of a backbone of one stride, counted from 0 as in
            ``out_indices``. Defaults to all stages, or four blocks evenly spread.
        label (str, optional): Name of the class to explain. Defaults to what the network is most sure of; for a
            segmenter the largest class.
        device (str, optional): ``'cpu'``, ``'cuda:0'``, …; the best there is by default.

    Returns:
        list[Path]: Broken pictures, which were skipped.

    Raises:
        UsageError: If files are missing, results are in the way or options do not fit.
    """
    check_checkpoint(checkpoint)
    cfg = load_config(config)
    images = find_images(Path(source), Path(out_dir))
    root = Path(source) if Path(source).is_dir() else Path(source).parent
    sheets = {path: Path(out_dir) / 'vis' / path.relative_to(root).with_name(f'{path.name}.png') for path in images}
    for sheet in sheets.values():
        if sheet.exists():
            raise UsageError(f'{sheet} exists and is not overwritten; move it away or choose another --out-dir.')
    check_device(device)
    task = build_task(cfg, checkpoint, device, None, None, 0.)
    model = task.inferencer.model.requires_grad_(True)
    if not isinstance(model.backbone, BaseBackbone):
        raise UsageError(f'{config} has the backbone {type(model.backbone).__name__}, which is none of mmsoft.')
    for module in model.modules():
        if hasattr(module, 'with_cp'):
            module.with_cp = False  # a block that is computed again is seen twice
    count = len(taps(model.backbone))
    if stages is None:
        stages = np.unique(np.linspace(-1, count - 1, min(count, 4) + 1)[1:].astype(int)).tolist()
    if not all(0 <= stage < count for stage in stages):
        raise UsageError(f'--stages are from 0 to {count - 1} for this backbone; got {", ".join(map(str, stages))}.')
    classes = getattr(task.inferencer, 'classes', None) or getattr(model, 'dataset_meta', {}).get('classes', ())
    if label is not None and label not in classes:
        known = ', '.join(classes) or 'the checkpoint names none'
        raise UsageError(f'--label {label} is none of the classes: {known}.')

    broken = []
    for path, _, prepared in prepare(task, track(images, description='Looking'), broken):
        contact_sheet(*look(model, task.collate([prepared]), stages, classes, label), sheets[path], width=3.)
    return broken


def look(model: torch.nn.Module, data: dict, stages: Sequence[int], classes: Sequence[str],
         label: Optional[str] = None) -> Tuple[List[List[np.ndarray]], List[List[str]]]:
    """The rows of a sheet, and a caption for each picture in them.

    Args:
        model (nn.Module): A detector, segmenter or classifier, of which all parameters want gradients.
        data (dict): One picture, as its pipeline makes and collates it.
        stages (Sequence[int]): See :func:`visualize`.
        classes (Sequence[str]): Their names.
        label (str, optional): See :func:`visualize`.
    """
    picture = np.ascontiguousarray(data['inputs'][0].permute(1, 2, 0).cpu().numpy()[..., ::-1])
    data = model.data_preprocessor(data, False)
    with torch.enable_grad(), watch(model.backbone, stages) as seen, _dense_logits(model) as logits:
        sample = model(**data, mode='predict')[0]
    found, score = evidence(sample, None if label is None else classes.index(label), logits)

    def spread(heat: Tensor) -> Tensor:
        """Over the picture, without what it was padded with."""
        heat = F.interpolate(heat[None, None].float(), data['inputs'].shape[-2:], mode='bilinear')
        return heat[0, 0, :picture.shape[0], :picture.shape[1]]

    names = [f'stage {stage}' if hasattr(model.backbone, 'stages') else f'block {stage}' for stage in seen]
    rows = [[picture, *(feature_picture(record) for record in seen.values())]]
    captions = [['picture', *(f'features of {name}, {record.hw[0]}×{record.hw[1]}'
                              for name, record in zip(names, seen.values()))]]
    if score is not None:
        maps = class_activation(score, list(seen.values()))
        rows.append([picture, *(overlay(picture, spread(heat)) for heat in maps)])
        captions.append([f'what {classes[found] if classes else found} depends on', *names])
    for name, record in zip(names, seen.values()):
        if record.landmarks is not None:
            kernels = landmark_kernels(record, PLACES[:len(names)])
            rows.append([mark(picture, *(place for _, place in kernels)),
                         *(mark(overlay(picture, spread(kernel)), place) for kernel, place in kernels)])
            captions.append([f'kernel of landmarks, {name}',
                             *(f'{kernel.min():.2g} to {kernel.max():.2g}' for kernel, _ in kernels)])
    blank = np.full_like(picture, 255)
    return ([row + [blank] * (len(rows[0]) - len(row)) for row in rows],
            [caption + [''] * (len(rows[0]) - len(caption)) for caption in captions])


@contextmanager
def _dense_logits(model: torch.nn.Module) -> Iterator[List[Tensor]]:
    """Logits (anchors, classes) of a one-stage detector's levels: mmdet cuts its predictions off the graph."""
    logits = []

    def keep(head: torch.nn.Module, inputs: tuple, output: tuple) -> None:
        for level in output[0] if isinstance(output[0], (list, tuple)) else ():  # a DETR's are one tensor, on the graph
            logits.append(level[0].unflatten(0, (-1, head.cls_out_channels)).transpose(0, 1).flatten(1).mT)

    hook = model.bbox_head.register_forward_hook(keep) if hasattr(model, 'bbox_head') else None
    yield logits
    if hook:
        hook.remove()


def evidence(sample: Any, label: Optional[int] = None,
             logits: Sequence[Tensor] = ()) -> Tuple[Optional[int], Optional[Tensor]]:
    """A class, and the score to explain it by; without a class the one that is most sure. None where nothing is found.

    Args:
        sample (DataSample, SegDataSample or DetDataSample): A prediction.
        label (int, optional): The class.
        logits (Sequence[Tensor]): Of a one-stage detector, of which as many as it found boxes count, the greatest.
    """
    if 'pred_score' in sample:
        label = int(sample.pred_score.argmax()) if label is None else label
        return label, sample.pred_score[label].log()
    if 'seg_logits' in sample:
        scores, winner = sample.seg_logits.data, sample.pred_sem_seg.data[0]
        label = int(winner.flatten().bincount().argmax()) if label is None else label
        return (label, scores[label][winner == label].sum()) if (winner == label).any() else (label, None)
    boxes = sample.pred_instances
    if label is None and len(boxes):
        label = int(boxes.labels[boxes.scores.argmax()])
    chosen = boxes.scores[boxes.labels == label] if len(boxes) else boxes.scores
    if len(chosen) and logits:
        chosen = torch.cat([level[:, label] for level in logits]).topk(len(chosen)).values
    return label, chosen.sum() if len(chosen) else None


def mark(picture: np.ndarray, *places: Tuple[float, float]) -> np.ndarray:
    """A picture with crosses at parts of its height and width."""
    picture, size = picture.copy(), max(picture.shape) // 16
    for y, x in places:
        at = (round(x * picture.shape[1]), round(y * picture.shape[0]))
        cv2.drawMarker(picture, at, (0, 0, 0), cv2.MARKER_CROSS, size, size // 4 + 2)
        cv2.drawMarker(picture, at, (255, 255, 255), cv2.MARKER_CROSS, size, size // 10 + 1)
    return picture
