"""Panoptic segmentation of scenes under a sky: things are their objects, and what none covers is one class of stuff."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from mmcv.transforms import BaseTransform
from mmdet.evaluation.functional import INSTANCE_OFFSET
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS, TRANSFORMS

from mmsoft.datasets.shapes import SKY_METAINFO

STUFF = len(SKY_METAINFO['classes'])  # the label behind those of things
IGNORED = 255


@TRANSFORMS.register_module()
class BackgroundAsStuff(BaseTransform):
    """Adds the label map of stuff, in which objects are ignored."""

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """See :class:`BaseTransform`."""
        objects = results['gt_masks'].to_ndarray().any(0)
        return dict(results, gt_seg_map=np.where(objects, IGNORED, STUFF).astype(np.uint8))


@METRICS.register_module()
class PanopticQuality(BaseMetric):
    """Panoptic quality (1801.00868, equation 1), the mean over classes, where no pixel is void and no object a crowd.

    mmdet's metric needs a package that no index has.
    """

    default_prefix = 'panoptic'

    def process(self, data_batch: Any, data_samples: Sequence[dict[str, Any]]) -> None:
        """Counts the segments of each image, as :func:`matches` does."""
        for sample in data_samples:
            true = sample['gt_instances']['masks'].to_ndarray().astype(bool)
            stuff = sample['gt_sem_seg']['sem_seg'].cpu().numpy() == STUFF
            found = sample['pred_panoptic_seg']['sem_seg'].cpu().numpy()
            ids = np.unique(found[found % INSTANCE_OFFSET <= STUFF])  # beyond is nothing
            labels = [*sample['gt_instances']['labels'].tolist(), STUFF]
            segments = np.concatenate([true, stuff]), found == ids[:, None, None]
            self.results.append(matches(*segments, np.array(labels), ids % INSTANCE_OFFSET))

    def compute_metrics(self, results: list[np.ndarray]) -> dict[str, float]:
        """PQ, from the sums over images; classes that are nowhere do not count."""
        ious, true, found = np.sum(results, axis=0)
        there = true + found > 0
        return dict(PQ=float((2 * ious[there] / (true + found)[there]).mean()))


def matches(true: np.ndarray, found: np.ndarray, labels: np.ndarray, found_labels: np.ndarray) -> np.ndarray:
    """Of each class: the IoUs of matched segments, summed up, and how many segments there are and were found.

    Args:
        true: Masks of shape (t, H, W) that do not overlap.
        found: Masks of shape (f, H, W) that do not overlap.
        labels: Of ``true``.
        found_labels: Of ``found``.

    Returns:
        Shape (3, classes).
    """
    true, found = (masks.reshape(len(masks), math.prod(masks.shape[1:])).astype(float) for masks in (true, found))
    shared = true @ found.T
    iou = shared / np.maximum(true.sum(1)[:, None] + found.sum(1) - shared, 1)
    one, other = np.nonzero((iou > 0.5) & (labels[:, None] == found_labels))
    ious = np.bincount(labels[one], iou[one, other], minlength=STUFF + 1)
    return np.stack([ious, *(np.bincount(each, minlength=STUFF + 1) for each in (labels, found_labels))])
