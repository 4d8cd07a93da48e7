"""Which score a class is explained by."""
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData, PixelData
from mmpretrain.structures import DataSample
from mmseg.structures import SegDataSample

from mmsoft.apis.inference.visualization import evidence

LOGITS = [torch.tensor([[0., 5.], [1., -1.]]), torch.tensor([[2., 4.]])]


def boxes(scores, labels):
    return DetDataSample(pred_instances=InstanceData(scores=torch.tensor(scores), labels=torch.tensor(labels).long()))


def segmented():
    scores = torch.tensor([[[1., 1., 9.]], [[2., 3., 0.]], [[0., 0., 0.]]])  # (classes, 1, 3): two of class 1, one of 0
    return SegDataSample(seg_logits=PixelData(data=scores), pred_sem_seg=PixelData(data=scores.argmax(0, keepdim=True)))


@pytest.mark.parametrize('sample, label, logits, expected', [
    (DataSample(pred_score=torch.tensor([.2, .8])), None, [], (1, torch.tensor(.8).log())),
    (DataSample(pred_score=torch.tensor([.2, .8])), 0, [], (0, torch.tensor(.2).log())),
    (segmented(), None, [], (1, 5.)),
    (segmented(), 0, [], (0, 9.)),
    (segmented(), 2, [], (2, None)),
    (boxes([.5, .25, .75], [0, 0, 1]), None, [], (1, .75)),
    (boxes([.5, .25, .75], [0, 0, 1]), 0, [], (0, .75)),
    (boxes([.5, .25, .75], [0, 0, 1]), 0, LOGITS, (0, 3.)),
    (boxes([.5, .25, .75], [0, 0, 1]), None, LOGITS, (1, 5.)),
    (boxes([], []), None, LOGITS, (None, None)),
    (boxes([.5], [0]), 1, [], (1, None)),
])
def test_evidence(sample, label, logits, expected):
    found, score = evidence(sample, label, logits)
    assert found == expected[0] and (score is None if expected[1] is None else score == expected[1])
