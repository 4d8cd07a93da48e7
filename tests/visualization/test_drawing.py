"""Heat maps and label maps over images."""
import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from mmseg.visualization import SegLocalVisualizer

from mmsoft.visualization import draw_label_map, overlay

IMAGE = np.full((40, 60, 3), 100, np.uint8)


def test_what_is_high_is_brighter():
    heat = torch.zeros(4, 6, requires_grad=True) + torch.eye(4, 6)
    drawn = overlay(IMAGE, heat)
    assert drawn.shape == IMAGE.shape and drawn.dtype == np.uint8
    brightness = drawn.sum(-1)
    assert np.unravel_index(brightness.argmax(), (40, 60))[0] // 10 == np.unravel_index(brightness.argmax(), (40, 60))[1] // 10
    assert brightness[5, 5] > brightness[5, 50]


def test_a_peak_makes_maps_comparable():
    heat = np.eye(4, 6)
    half = overlay(IMAGE, heat, peak=2.)
    assert half.max() < overlay(IMAGE, heat).max()
    assert (overlay(IMAGE, np.ones((3, 3))) == overlay(IMAGE, np.zeros((3, 3)))).all()  # a constant map has no heat


CLASSES, PALETTE = ['sky', 'grass', 'a house', 'never'], [[10, 200, 30], [250, 0, 90], [0, 128, 255], [9, 9, 9]]


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('size', [(120, 200), (310, 400)], ids=str)
def test_label_maps_are_drawn_as_by_mmseg(size):
    labels = torch.zeros(1, *size, dtype=torch.long)
    labels[:, 50:, :90], labels[:, 20:70, 60:150], labels[:, -1, -3:] = 1, 2, 255
    image = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    visualizer = SegLocalVisualizer(alpha=0.6)
    visualizer.set_dataset_meta(classes=CLASSES, palette=PALETTE)
    sample = SegDataSample(pred_sem_seg=PixelData(data=labels))
    visualizer.add_datasample('image', image, sample, draw_gt=False)
    drawn = draw_label_map(image, labels[0].numpy(), CLASSES, PALETTE, 0.6)
    assert abs(visualizer.get_image().astype(int) - drawn).max() <= 1
    assert abs(image.astype(int) - drawn).mean() > 20
