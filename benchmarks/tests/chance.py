"""Scores of guessing without looking at the images."""

import contextlib
import io
from pathlib import Path

import cv2
import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmsoft.datasets.shapes import CLASSES, LABELS, SKY_METAINFO, STUFF


def chance(root: str) -> dict[str, float]:
    """Scores of guesses on the held-out shapes in a folder, by the names of the scores.

    * Detection under a sky: the true boxes and masks, each with a random class and score; no guess of a place is worse.
    * Panoptic segmentation: true masks, things with a random class. A class of things has one twelfth, stuff 1.
    * Segmentation: the same class everywhere, whichever gives the best mean.
    * Classification: the same class always.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(Path(root, 'sky/val.json')))
        rng = np.random.default_rng(0)
        guesses = [
            dict(one, category_id=int(rng.integers(len(SKY_METAINFO['classes']))) + 1, score=float(rng.random()))
            for one in truth.dataset['annotations']
            if not one['iscrowd']
        ]
        evaluation = COCOeval(truth, truth.loadRes(guesses), 'bbox')
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    average, at_50 = evaluation.stats[:2].tolist()
    labels = [cv2.imread(str(path), cv2.IMREAD_GRAYSCALE) for path in sorted(Path(root, LABELS['val']).iterdir())]
    counts = sum(np.bincount(one.ravel(), minlength=256) for one in labels)[1 : len(CLASSES + STUFF) + 1]
    return {
        **{f'{kind} AP50': at_50 for kind in ('box', 'mask')},
        **{f'{kind} AP': average for kind in ('box', 'mask')},
        'PQ': 2 / (len(SKY_METAINFO['classes']) + 1),
        'mIoU': float(counts.max() / counts.sum() / len(counts)),
        'top-1': 1 / len(CLASSES),
        'accuracy': 0.5,
    }
