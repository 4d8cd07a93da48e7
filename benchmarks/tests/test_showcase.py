"""`make train` and `make segment`: one sheet of predictions beside the ground truth."""

from pathlib import Path

import cv2
import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from benchmarks.showcase import draw_predictions
from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils.config import load_config

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize('name', ['retinanet_soft_nano_sky_shapes', 'upernet_soft_nano_shapes'])
def test_predictions_beside_the_ground_truth(name, tmp_path, monkeypatch):
    """Annotations are in the second column alone; a detector without training finds nothing that is certain."""
    monkeypatch.chdir(tmp_path)
    ensure_shapes(train=1, val=2, portraits=24, size=64, portrait_size=32)
    config = str(ROOT / f'configs/{name}.py')
    cfg = load_config(config)
    init_default_scope(cfg.default_scope)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), 'weights.pth')
    sheet = cv2.imread(str(draw_predictions(config, 'weights.pth', tmp_path / 'sheet.png'))).astype(int)
    assert 1150 < sheet.shape[1] < 1250 and sheet.shape[0] > 600  # three columns of 400 pixels, two rows
    image, truth, prediction = (sheet[:, left : left + 400] for left in (0, 400, 800))
    assert abs(image - truth).mean() > 2 and abs(truth - prediction).mean() > 2
