"""The heads of the shapes' configs count the data set's classes."""

from pathlib import Path

import pytest
from mmengine.config import Config

from mmsoft.datasets.shapes import METAINFO, SEMANTIC_METAINFO

CONFIGS = Path(__file__).parents[2] / 'configs'


@pytest.mark.parametrize(
    'name, head, metainfo',
    [
        ('retinanet_soft_nano_shapes', 'bbox_head', METAINFO),
        ('upernet_soft_nano_shapes', 'decode_head', SEMANTIC_METAINFO),
    ],
)
def test_heads(name, head, metainfo):
    cfg = Config.fromfile(CONFIGS / f'{name}.py')
    assert cfg.train_dataloader.dataset.metainfo == metainfo
    assert cfg.model[head].num_classes == len(metainfo['classes'])
    assert cfg.default_hooks.checkpoint.save_best, 'max_keep_ckpts alone removes the best checkpoint'
