"""The configs that spell out the shapes' classes say what the data set says."""
from pathlib import Path

from mmengine.config import Config

from mmsoft.datasets.shapes import METAINFO, SEMANTIC_METAINFO

CONFIGS = Path(__file__).parents[2] / 'configs'


def test_detection():
    cfg = Config.fromfile(CONFIGS / 'retinanet_soft_nano_shapes.py')
    assert cfg.train_dataloader.dataset.metainfo.classes == METAINFO['classes']
    assert cfg.train_dataloader.dataset.metainfo.palette == METAINFO['palette']
    assert cfg.model.bbox_head.num_classes == len(METAINFO['classes'])


def test_segmentation():
    cfg = Config.fromfile(CONFIGS / 'upernet_soft_nano_shapes.py')
    assert cfg.train_dataloader.dataset.metainfo.classes == SEMANTIC_METAINFO['classes']
    assert cfg.train_dataloader.dataset.metainfo.palette == SEMANTIC_METAINFO['palette']
    assert cfg.model.decode_head.num_classes == len(SEMANTIC_METAINFO['classes'])
