"""Label maps are drawn as mmseg draws them."""
import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from mmseg.visualization import SegLocalVisualizer

from mmsoft.visualization.label_map import LabelMapVisualizer

CLASSES, PALETTE = ['sky', 'grass', 'a house', 'never'], [[10, 200, 30], [250, 0, 90], [0, 128, 255], [9, 9, 9]]


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('size', [(120, 200), (310, 400)], ids=str)
def test_drawn_as_by_mmseg(size):
    labels = torch.zeros(1, *size, dtype=torch.long)
    labels[:, 50:, :90], labels[:, 20:70, 60:150], labels[:, -1, -3:] = 1, 2, 255
    image = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    sample = SegDataSample(pred_sem_seg=PixelData(data=labels))
    pictures = []
    for visualizer in (SegLocalVisualizer, LabelMapVisualizer):
        drawn = visualizer(alpha=0.6)
        drawn.set_dataset_meta(classes=CLASSES, palette=PALETTE)
        drawn.add_datasample('picture', image, sample, draw_gt=False)
        pictures.append(drawn.get_image().astype(int))
    assert abs(pictures[0] - pictures[1]).max() <= 1
    assert abs(pictures[0] - image).mean() > 20
