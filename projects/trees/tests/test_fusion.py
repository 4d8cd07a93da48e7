"""What several views found is one box for each object, in pixels of the image."""

import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.model import BaseModel
from mmengine.structures import InstanceData

from projects.trees.fusion import FusedTTAModel

WIDTH, HEIGHT = 100, 80
BOX = [20.0, 10.0, 40.0, 40.0]


def view(direction, *found):
    """What a detector found in a view: boxes in its own pixels, and scores."""
    sample = DetDataSample(
        metainfo=dict(ori_shape=(HEIGHT, WIDTH), flip=direction is not None, flip_direction=direction)
    )
    boxes = torch.tensor([box for box, _ in found]).reshape(-1, 4)
    scores = torch.tensor([score for _, score in found])
    sample.pred_instances = InstanceData(bboxes=boxes, scores=scores, labels=torch.zeros(len(found), dtype=torch.long))
    return sample


class Silent(BaseModel):
    """Stands for the detector, which is not asked."""

    def forward(self):
        raise AssertionError


def fused(*views, max_per_img=10):
    model = FusedTTAModel(module=Silent(), max_per_img=max_per_img)
    return model.merge_preds([list(views)])[0].pred_instances


@pytest.mark.parametrize(
    'direction, flipped',
    [
        ('horizontal', [60.0, 10.0, 80.0, 40.0]),
        ('vertical', [20.0, 40.0, 40.0, 70.0]),
        ('diagonal', [60.0, 40.0, 80.0, 70.0]),
    ],
)
def test_views_that_agree_are_one_box(direction, flipped):
    found = fused(view(None, (BOX, 0.6)), view(direction, (flipped, 0.6)))
    assert found.bboxes.tolist() == [BOX] and found.labels.tolist() == [0]
    torch.testing.assert_close(found.scores, torch.tensor([0.6]))


def test_boxes_are_averaged_by_their_scores():
    found = fused(view(None, (BOX, 0.6)), view(None, ([24.0, 10.0, 44.0, 40.0], 0.2)))
    torch.testing.assert_close(found.bboxes, torch.tensor([[21.0, 10.0, 41.0, 40.0]]))
    torch.testing.assert_close(found.scores, torch.tensor([0.4]))


def test_what_one_view_of_two_found_has_half_its_score():
    found = fused(view(None, (BOX, 0.5), ([60.0, 50.0, 80.0, 70.0], 0.6)), view(None, (BOX, 0.5)))
    torch.testing.assert_close(found.scores, torch.tensor([0.5, 0.3]))
    assert len(fused(view(None, (BOX, 0.5), ([60.0, 50.0, 80.0, 70.0], 0.6)), max_per_img=1)) == 1


def test_nothing_may_be_found():
    found = fused(view(None), view('vertical'))
    assert found.bboxes.shape == (0, 4) and found.scores.shape == found.labels.shape == (0,)
