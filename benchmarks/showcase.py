"""Trains a config on the synthetic shapes data set, evaluates it on held-out scenes, and draws its predictions.

python -m benchmarks.showcase configs/retinanet_soft_nano_sky_shapes.py    # as `make train`

After an interruption the same command continues.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

import mmcv
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, init_default_scope
from mmengine.structures import InstanceData
from torchvision.ops import box_iou

from mmsoft.apis import test, train
from mmsoft.apis.tasks import build_task
from mmsoft.engine.checkpoints import latest_checkpoint
from mmsoft.utils.cli import command_line
from mmsoft.utils.config import load_config
from mmsoft.utils.files import atomic_write

SCORES = {'coco/bbox_mAP_50': 'box AP50', 'coco/bbox_mAP': 'box AP', 'mIoU': 'mIoU', 'aAcc': 'pixel accuracy'}
RIGHT, WRONG, MISSED = '#12a150', '#e5484d', '#1f2430'
THRESHOLD, SIDE = 0.5, 3.4  # of a drawn detection; inches of an image


def draw_predictions(config: str, checkpoint: str, path: Path, count: int = 4, seed: int = 0) -> Path:
    """Draws random images of a detector's or segmenter's test set as one PNG: truth, prediction, errors."""
    cfg = load_config(config)
    init_default_scope(cfg.default_scope)
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    inferencer = build_task(cfg, checkpoint).inferencer
    chosen = np.random.default_rng(seed).permutation(len(dataset))[:count]
    draw, columns = (_detections, 3) if cfg.default_scope == 'mmdet' else (_label_maps, 4)
    figure = Figure(figsize=(SIDE * columns, SIDE * len(chosen) + 0.6), dpi=100, layout='compressed')
    rows = figure.subplots(len(chosen), columns, squeeze=False)
    for row, index in zip(rows, chosen.tolist()):
        with torch.no_grad():
            sample = inferencer.forward(pseudo_collate([dataset[index]]))[0].cpu()
        image = mmcv.imread(sample.img_path, channel_order='rgb')
        for axis in row:
            axis.imshow(image)
            axis.axis('off')
        legend = draw(row, sample, dataset.metainfo)
    for axis, title in zip(rows[0], ('image', 'ground truth', 'prediction', 'wrong pixels')):
        axis.set_title(title, fontsize=13)
    figure.legend(handles=legend, loc='outside lower center', ncols=6, frameon=False, fontsize=11)
    with atomic_write(path) as file:
        figure.savefig(file, format='png')
    return path


def _detections(row: Sequence[Axes], sample, metainfo: dict) -> list[Line2D]:
    """Boxes with the names of their classes; those of the prediction tell whether they are right."""
    truth, found = sample.gt_instances, sample.pred_instances
    found = found[found.scores >= THRESHOLD]
    boxes = torch.as_tensor(getattr(truth.bboxes, 'tensor', truth.bboxes))
    owner = list(matches(boxes, truth.labels, found))
    missed = [index for index in range(len(boxes)) if index not in owner]
    parts = (
        (row[1], boxes, truth.labels, [RIGHT] * len(boxes), '-'),
        (row[2], found.bboxes, found.labels, [WRONG if one is None else RIGHT for one in owner], '-'),
        (row[2], boxes[missed], truth.labels[missed], [MISSED] * len(missed), ':'),
    )
    for axis, some, labels, colours, style in parts:
        for (left, top, right, bottom), label, colour in zip(some.tolist(), labels.tolist(), colours):
            line = dict(edgecolor=colour, fill=False, linewidth=2, linestyle=style)
            axis.add_patch(Rectangle((left, top), right - left, bottom - top, **line))
            if style == '-':
                words = dict(fontsize=10, color='white', va='top', clip_on=True)
                patch = dict(facecolor=colour, edgecolor='none', pad=1.5)
                axis.text(left, max(top, 1), metainfo['classes'][label], bbox=patch, **words)
    titles = {RIGHT: 'right (IoU ≥ 0.5)', WRONG: 'wrong class, place, or double', MISSED: 'missed'}
    return [Line2D([], [], color=one, lw=2, ls=':' if one == MISSED else '-', label=titles[one]) for one in titles]


def matches(boxes: torch.Tensor, labels: torch.Tensor, found: InstanceData) -> Iterator[Optional[int]]:
    """The object of each detection, in order of scores: of its class, IoU at least 0.5, and no detection's before."""
    free = set(range(len(boxes)))
    for box, label in zip(found.bboxes, found.labels):
        fits = [one for one in free if labels[one] == label and box_iou(boxes[one, None], box[None]).item() >= 0.5]
        free.discard(best := max(fits, key=lambda one: box_iou(boxes[one, None], box[None]).item(), default=None))
        yield best


def _label_maps(row: Sequence[Axes], sample, metainfo: dict) -> list[Patch]:
    """Classes as colours, and where they are wrong."""
    truth, found = (one.data[0].numpy() for one in (sample.gt_sem_seg, sample.pred_sem_seg))
    classes, palette = [*metainfo['classes'], 'ignored'], np.array([*metainfo['palette'], (255, 255, 255)]) / 255
    for axis, labels in ((row[1], truth), (row[2], found)):
        axis.imshow(palette[np.minimum(labels, len(palette) - 1)])
    row[3].imshow((truth != found) & (truth != 255), cmap=ListedColormap(['white', WRONG]), alpha=0.8)
    return [Patch(facecolor=colour, edgecolor=MISSED, label=name) for colour, name in zip(palette, classes)]


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command line, which prints the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file on the synthetic shapes data set')
    parser.add_argument('--work-dir', help='folder for logs, checkpoints and the image (default: work_dirs/CONFIG)')
    args = parser.parse_args(arguments)
    work_dir = args.work_dir or f'./work_dirs/{Path(args.config).stem}'
    train(args.config, work_dir, resume='auto')
    checkpoint = latest_checkpoint(work_dir)
    scores = test(args.config, checkpoint, work_dir)
    image = draw_predictions(args.config, checkpoint, Path(work_dir, 'contact_sheet.png'))
    said = ', '.join(f'{name} {scores[key]:.3g}' for key, name in SCORES.items() if key in scores)
    print(f'Held-out scenes: {said}; predictions are drawn in {image}')


if __name__ == '__main__':
    raise SystemExit(command_line(main, 'Interrupted; the same command continues.'))
