"""Trains a config on the synthetic shapes data set, evaluates it on held-out scenes, and draws its predictions.

python -m benchmarks.showcase configs/retinanet_soft_nano_sky_shapes.py    # as `make train`

After an interruption the same command continues.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import mmcv
import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, init_default_scope
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor

from mmsoft.apis import test, train
from mmsoft.apis.cli import command_line
from mmsoft.apis.tasks import build_task
from mmsoft.engine import latest_checkpoint
from mmsoft.utils.config import load_config
from mmsoft.visualization import contact_sheet

SCORES = {'coco/bbox_mAP_50': 'box AP50', 'coco/bbox_mAP': 'box AP', 'mIoU': 'mIoU', 'aAcc': 'pixel accuracy'}


@torch.no_grad()
def draw_predictions(config: str, checkpoint: str, path: Path) -> Path:
    """Draws six images of a detector's or segmenter's test set as one PNG, with ground truth and predictions."""
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


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command line, which prints the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file on the shapes')
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
