"""Sheets of images: what a network sees, and predictions beside the ground truth."""

from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import cv2
import mmcv
import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, init_default_scope
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor, nn

from mmsoft.backbones.base import BaseBackbone
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config
from mmsoft.visualization import bottleneck_kernel, contact_sheet, feature_image, output_blocks, overlay, watch

from .images import name_results, png_names, refuse_existing
from .prediction import prepare
from .tasks import build_task

PLACES = ((0.3, 0.3), (0.3, 0.7), (0.7, 0.3), (0.7, 0.7))
"""Of bottleneck tokens, as parts of height and width."""


def visualize(
    config: str,
    checkpoint: str,
    source: str,
    out_dir: str,
    stages: Optional[Sequence[int]] = None,
    device: Optional[str] = None,
) -> list[Path]:
    """Writes a sheet ``OUT_DIR/vis/….png`` for each image, of what the network sees in the stages of its backbone.

    Args:
        config (str): Config of a detector, segmenter or classifier with a backbone of mmsoft.
        checkpoint, source, out_dir, device: As in :func:`~mmsoft.apis.predict`.
        stages (Sequence[int], optional): Stages, or blocks of a backbone of one stride, counted from 0 as in
            ``out_indices``. Defaults to all stages, or four blocks evenly spread.

    Returns:
        list[Path]: Broken images, which were named and skipped.

    Raises:
        UsageError: If files are missing, results exist already or options do not fit.
    """
    cfg, out = load_config(config), Path(out_dir, 'vis')
    names = name_results(source, out_dir)
    sheets = png_names(names.values())
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

    broken: list[Path] = []
    for path, _, prepared in prepare(task, names, broken):
        rows = look(model, task.collate([prepared]), stages)
        contact_sheet(
            [[image for image, _ in row] for row in rows],
            [[caption for _, caption in row] for row in rows],
            out / sheets[names[path]],
            width=3.0,
        )
    print(f'Sheets of {len(names) - len(broken)} of {len(names)} images are in {out}.')
    return broken


@torch.no_grad()
def look(model: nn.Module, data: dict, stages: Sequence[int]) -> list[list[tuple[np.ndarray, str]]]:
    """The rows of a sheet, images with captions: features of each stage, then bottleneck kernels where there are any.

    Args:
        model (nn.Module): A detector, segmenter or classifier.
        data (dict): One image, prepared and collated.
        stages (Sequence[int]): See :func:`visualize`.
    """
    pixels = data['inputs'][0].permute(1, 2, 0).cpu().numpy()[..., ::-1]
    images = model.data_preprocessor(data, False)['inputs']
    image = np.zeros((*images.shape[2:], 3), np.uint8)
    image[: pixels.shape[0], : pixels.shape[1]] = pixels
    with watch(model.backbone, stages) as seen:
        model.backbone(images)

    kind = 'stage' if hasattr(model.backbone, 'stages') else 'block'
    rows = [
        [
            (image, 'image'),
            *(
                (
                    feature_image(record.features),
                    'features of {} {}, {}×{}'.format(kind, index, *record.features.shape[1:]),
                )
                for index, record in seen.items()
            ),
        ]
    ]
    for index, record in seen.items():
        if record.bottleneck is not None:
            kernels = [bottleneck_kernel(record, *place) for place in PLACES[: len(stages)]]
            row = [
                (_mark(overlay(image, kernel), place), f'{kernel.min():.2g} to {kernel.max():.2g}')
                for kernel, place in kernels
            ]
            marked = _mark(image, *(place for _, place in kernels))
            blank = [(np.full_like(image, 255), '')] * (len(stages) - len(row))
            rows.append([(marked, f'bottleneck kernels, {kind} {index}'), *row, *blank])
    return rows


def _mark(image: np.ndarray, *places: tuple[float, float]) -> np.ndarray:
    """An image with crosses at places, parts of its height and width."""
    image, size = image.copy(), max(image.shape) // 16
    for y, x in places:
        for colour, thickness in ((0, size // 4 + 2), (255, size // 10 + 1)):
            at = round(x * image.shape[1]), round(y * image.shape[0])
            cv2.drawMarker(image, at, (colour,) * 3, cv2.MARKER_CROSS, size, thickness)
    return image


@torch.no_grad()
def draw_contact_sheet(config: str, checkpoint: str, path: Path) -> Path:
    """Draws six images of a trained model's test set as one PNG, with the ground truth and with its predictions.

    Args:
        config (str): A detection or segmentation config.
        checkpoint (str): The trained weights.
        path (Path): The PNG to write.
    """
    cfg = load_config(config)
    init_default_scope(cfg.default_scope)
    dataset, rows = DATASETS.build(cfg.test_dataloader.dataset), []
    inferencer = build_task(cfg, checkpoint).inferencer
    inferencer.visualizer.dataset_meta = dataset.metainfo
    draw = dict(pred_score_thr=0.5) if cfg.default_scope == 'mmdet' else {}
    for index in np.linspace(0, len(dataset) - 1, min(6, len(dataset))).astype(int).tolist():
        sample = inferencer.forward(pseudo_collate([dataset[index]]))[0].cpu()
        image = _enlarge(mmcv.imread(sample.img_path, channel_order='rgb'), sample)
        rows.append([image])
        for gt in (True, False):
            inferencer.visualizer.add_datasample('', image.copy(), sample, draw_gt=gt, draw_pred=not gt, **draw)
            rows[-1].append(inferencer.visualizer.get_image())
    return contact_sheet(rows, ('image', 'ground truth', 'prediction'), path)


def _enlarge(image: np.ndarray, sample: BaseDataElement) -> np.ndarray:
    """A small image at several times its size, with its boxes, masks and labels, so that the names of classes fit."""
    times = max(1, 480 // max(image.shape[:2]))

    def repeat(pixels: Tensor) -> Tensor:
        return pixels.repeat_interleave(times, dim=-2).repeat_interleave(times, dim=-1)

    for name, data in sample.items():
        if 'bboxes' in data:
            data.bboxes = data.bboxes * times
            if 'masks' in data:  # mmdet's own type in the ground truth, a tensor in predictions
                data.masks = repeat(data.masks) if torch.is_tensor(data.masks) else data.masks.rescale(times)
        elif name in ('gt_sem_seg', 'pred_sem_seg'):
            sample.set_field(PixelData(data=repeat(data.data)), name)
    return mmcv.imrescale(image, times)
