"""Images of all three tasks are drawn with what is annotated, after augmentation."""

import runpy
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from mmsoft.apis import browse
from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils import UsageError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp('browse')
    ensure_shapes(root / 'data/shapes', train=4, val=2, portraits=8)
    return root


@pytest.mark.parametrize(
    'name', ['retinanet_soft_nano_shapes', 'mask_rcnn_soft_tiny_1x', 'upernet_soft_nano_shapes', 'soft_tiny_in1k']
)
def test_annotations_are_drawn(name, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    out = folder / name
    arguments = [str(ROOT / f'configs/{name}.py'), '--out-dir', str(out), '--count', '2', '--demo-data']
    monkeypatch.setattr(sys, 'argv', ['browse_dataset.py', *arguments])
    runpy.run_path(str(ROOT / 'tools/browse_dataset.py'))['main']()
    assert str(out) in capsys.readouterr().out
    images = [cv2.imread(str(path)) for path in sorted(out.iterdir())]
    assert len(images) == 2 and all(image is not None and len(np.unique(image)) > 20 for image in images)


def test_missing_data_and_a_full_folder_are_errors_of_the_user(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match='instances_train2017.json'):
        browse(str(ROOT / 'configs/retinanet_soft_small_1x.py'), 'new')
    with pytest.raises(UsageError, match='data'):
        browse(str(ROOT / 'configs/retinanet_soft_small_1x.py'), 'data', demo_data=True)
