"""Predictions of segmenters and classifiers as they are drawn and saved."""

import json
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmdet.visualization import DetLocalVisualizer
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from mmseg.visualization import SegLocalVisualizer

from mmsoft.apis.tasks import Detection, Segmentation


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('size', [(120, 200), (310, 400)], ids=str)
def test_label_maps_are_drawn_as_by_mmseg(size, tmp_path):
    labels = torch.zeros(1, *size, dtype=torch.long)
    labels[:, 50:, :90], labels[:, 20:70, 60:150] = 1, 2
    image = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    visualizer = SegLocalVisualizer(alpha=0.6)
    meta = dict(
        classes=['sky', 'grass', 'a house', 'never'], palette=[[10, 200, 30], [250, 0, 90], [0, 128, 255], [9, 9, 9]]
    )
    visualizer.set_dataset_meta(**meta)
    sample = SegDataSample(pred_sem_seg=PixelData(data=labels))
    visualizer.add_datasample('image', image, sample, draw_gt=False, with_labels=False)
    task = SimpleNamespace(inferencer=SimpleNamespace(visualizer=visualizer, model=SimpleNamespace(dataset_meta=meta)))
    Segmentation.draw(task, image, sample, tmp_path / 'x.png')
    drawn = cv2.imread(str(tmp_path / 'x.png'))[..., ::-1]
    assert abs(visualizer.get_image().astype(int) - drawn).max() <= 1
    assert abs(image.astype(int) - drawn).mean() > 20
    task.inferencer.model.dataset_meta = dict(palette=None)  # of a checkpoint without colours
    for same in (labels, labels + 4):  # of more classes than there are colours
        Segmentation.draw(task, image, SegDataSample(pred_sem_seg=PixelData(data=same)), tmp_path / 'y.png')
        assert (cv2.imread(str(tmp_path / 'y.png'))[..., ::-1] == drawn).all()


def test_label_maps_of_many_classes_have_the_colours_of_all(tmp_path):
    model = SimpleNamespace(dataset_meta=dict(palette=[[9, 9, 9]] * 299 + [[200, 100, 0]]))
    task = SimpleNamespace(inferencer=SimpleNamespace(visualizer=SimpleNamespace(alpha=0.5), model=model))
    sample = SegDataSample(pred_sem_seg=PixelData(data=torch.full((1, 4, 6), 299)))
    Segmentation.draw(task, np.zeros((4, 6, 3), np.uint8), sample, tmp_path / 'x.png')
    assert (cv2.imread(str(tmp_path / 'x.png')) == (0, 50, 100)).all()


@pytest.mark.parametrize(
    'classes, count, kind',
    [
        (None, 3, np.uint8),
        (['a'] * 19, 300, np.uint16),
        (['a'] * 300, 300, np.uint16),
        (['a'] * 256, 2, np.uint8),
        (['a'] * 2, 2, np.uint8),
    ],
    ids=['unknown', 'assumed', 'many', 'as many as fit', 'few'],
)
def test_label_maps_have_room_for_all_classes(classes, count, kind):
    """Also where a checkpoint has no classes, and mmseg takes those of Cityscapes."""
    model = SimpleNamespace(dataset_meta=dict(classes=classes), num_classes=count)
    task = SimpleNamespace(inferencer=SimpleNamespace(model=model))
    labels = torch.tensor([[[0, count - 1]]])
    for data in (labels, labels.float()):
        content = Segmentation.encode(task, SegDataSample(pred_sem_seg=PixelData(data=data)))
        read = cv2.imdecode(np.frombuffer(content, np.uint8), -1)
        assert read.dtype == kind and read.tolist() == labels[0].tolist()


def test_panoptic_predictions_are_saved():
    """mmdet gives them as an array, of the colours by which panopticapi names segments."""
    task, colours = object.__new__(Detection), np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    task.inferencer = SimpleNamespace(pred2dict=lambda sample: dict(labels=[1], panoptic_seg=colours))
    assert json.loads(task.encode(DetDataSample())) == dict(labels=[1], panoptic_seg=colours.tolist())


@pytest.mark.parametrize('segments', [False, True])
def test_panoptic_predictions_may_have_no_segment(segments, tmp_path):
    """mmdet would end with "need at least one array to stack"; its mark of no segment is the number of classes."""
    task, image = object.__new__(Detection), np.zeros((8, 12, 3), np.uint8)
    visualizer = DetLocalVisualizer(name='panoptic')
    visualizer.dataset_meta = dict(classes=('star', 'sky'), palette=[(9, 99, 199), (199, 99, 9)])
    task.inferencer, task.score_thr = SimpleNamespace(visualizer=visualizer), 0.3
    labels = torch.full((1, 8, 12), 2)
    labels[..., 6:] = 1 if segments else 2
    sample = DetDataSample(pred_panoptic_seg=PixelData(sem_seg=labels))
    task.draw(image, sample, tmp_path / 'a.png')
    drawn = cv2.imread(str(tmp_path / 'a.png'))
    assert drawn.shape == image.shape and drawn.any() == segments
