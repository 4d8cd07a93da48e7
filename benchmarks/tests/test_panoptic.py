"""The panoptic quality of the evidence, against what the paper's equation gives by hand."""

import numpy as np
import pytest
import torch
from mmdet.evaluation.functional import INSTANCE_OFFSET
from mmdet.structures.mask import BitmapMasks

from benchmarks.evidence.panoptic import IGNORED, STUFF, BackgroundAsStuff, PanopticQuality

NOTHING = STUFF + 1


def sample(found):
    """Of 4×6 pixels, the left third is an object of class 3, the next one of class 5, and the right one is stuff."""
    masks = np.zeros((2, 4, 6), np.uint8)
    masks[0, :, :2] = masks[1, :, 2:4] = 1
    masks = BitmapMasks(masks, 4, 6)
    stuff = torch.from_numpy(BackgroundAsStuff()(dict(gt_masks=masks))['gt_seg_map'])
    return dict(
        gt_instances=dict(masks=masks, labels=torch.tensor([3, 5])),
        gt_sem_seg=dict(sem_seg=stuff[None]),
        pred_panoptic_seg=dict(sem_seg=torch.tensor(found).expand(1, 4, 6)),
    )


def quality(*found):
    metric = PanopticQuality()
    metric.process(None, [sample(one) for one in found])
    return metric.evaluate(len(found))['panoptic/PQ']


FIRST, SECOND = 3 + INSTANCE_OFFSET, 5 + 2 * INSTANCE_OFFSET
WHOLE = [FIRST, FIRST, SECOND, SECOND, STUFF, STUFF]


def test_what_no_object_covers_is_stuff():
    assert sample(WHOLE)['gt_sem_seg']['sem_seg'][0, 0].tolist() == [IGNORED] * 4 + [STUFF] * 2


def test_the_truth_has_one():
    assert quality(WHOLE) == 1


@pytest.mark.parametrize(
    'found, expected',
    [
        ([FIRST, FIRST, SECOND, STUFF, STUFF, STUFF], (1 + 0 + 2 / 3) / 3),  # half of an object is no match
        ([FIRST, FIRST, FIRST, SECOND, STUFF, STUFF], (2 / 3 + 0 + 1) / 3),
        ([SECOND, SECOND, SECOND, SECOND, STUFF, STUFF], (0 + 0 + 1) / 3),  # one for two
        ([FIRST, FIRST, 7 + INSTANCE_OFFSET, 7 + INSTANCE_OFFSET, STUFF, STUFF], (1 + 0 + 0 + 1) / 4),  # another class
        ([FIRST, FIRST, NOTHING, NOTHING, NOTHING, STUFF], (1 + 0 + 0) / 3),
        ([NOTHING] * 6, 0),
    ],
)
def test_parts_and_other_classes(found, expected):
    assert quality(found) == pytest.approx(expected)


def test_images_count_together():
    lost = [FIRST, FIRST, NOTHING, NOTHING, STUFF, STUFF]
    assert quality(WHOLE, lost) == pytest.approx((1 + 1 / 1.5 + 1) / 3)  # one of two found: 1 / (1 + 1/2)
