"""`make train` and `make segment`: one sheet of predictions beside the ground truth."""

from pathlib import Path

import cv2
import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData

from benchmarks import showcase
from benchmarks.showcase import draw_predictions, matches
from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils.config import load_config

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize('name, columns', [('retinanet_soft_nano_sky_shapes', 3), ('upernet_soft_nano_shapes', 4)])
def test_predictions_beside_the_ground_truth(name, columns, tmp_path, monkeypatch):
    """Annotations are in the second column alone; a detector without training finds nothing that is certain."""
    monkeypatch.chdir(tmp_path)
    ensure_shapes(train=1, val=2, portraits=24, size=64, portrait_size=32)
    config = str(ROOT / f'configs/{name}.py')
    cfg = load_config(config)
    init_default_scope(cfg.default_scope)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), 'weights.pth')
    sheet = cv2.imread(str(draw_predictions(config, 'weights.pth', tmp_path / 'sheet.png'))).astype(int)
    side = sheet.shape[1] // columns
    assert 330 < side < 350 and sheet.shape[0] > 600  # two rows
    image, truth, prediction = (sheet[:, left * side : (left + 1) * side] for left in range(3))
    assert abs(image - truth).mean() > 2 and abs(truth - prediction).mean() > 2
    if columns == 4:  # untrained, many pixels are wrong, and drawn red
        assert (sheet[:, 3 * side :, 2] - sheet[:, 3 * side :, 1] > 60).mean() > 0.2


def test_scores_of_the_last_checkpoint_are_printed_by_their_names(monkeypatch, capsys, tmp_path):
    scores = {'coco/bbox_mAP': 0.3, 'coco/bbox_mAP_50': 0.5, 'aAcc': 90.0, 'mIoU': 40.0}
    monkeypatch.setattr(showcase, 'train', lambda *args, **options: None)
    monkeypatch.setattr(showcase, 'latest_checkpoint', lambda folder: 'last.pth')
    monkeypatch.setattr(showcase, 'test', lambda config, checkpoint, folder: checkpoint == 'last.pth' and scores)
    monkeypatch.setattr(showcase, 'draw_predictions', lambda config, checkpoint, path: path)
    showcase.main(['config.py', '--work-dir', str(tmp_path)])
    assert 'box AP50 0.5, box AP 0.3, mIoU 40, pixel accuracy 90;' in capsys.readouterr().out


def test_a_detection_is_right_once_at_its_place_and_of_its_class():
    boxes, labels = torch.tensor([[0.0, 0, 10, 10], [20, 0, 30, 10]]), torch.tensor([1, 2])
    found = InstanceData(
        bboxes=torch.tensor([[0.0, 0, 10, 9], [0, 0, 10, 10], [20, 0, 30, 10], [26, 0, 36, 10], [20, 0, 30, 10]]),
        labels=torch.tensor([1, 1, 1, 2, 2]),
    )
    assert list(matches(boxes, labels, found)) == [0, None, None, None, 1]
