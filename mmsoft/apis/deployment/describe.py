"""What a program must know to use an exported model: how pictures become its input, and what its labels mean."""
import re
from typing import Any, Dict

from mmengine.config import Config
from torch import nn

from mmsoft.version import __version__

TASKS = dict(mmdet='detection', mmseg='segmentation', mmpretrain='classification')


def preprocessing(cfg: Config) -> Dict[str, Any]:
    """How a config turns pictures into images, as it may be read in docs/deployment.md."""
    settings = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    divisor = settings.get('pad_size_divisor') or settings.get('size_divisor') or (
        settings.get('test_cfg') or {}).get('size_divisor')
    return dict(
        task=TASKS[cfg.default_scope],
        channel_order='RGB' if settings.get('bgr_to_rgb') or settings.get('to_rgb') else 'BGR',
        mean=_plain(settings.get('mean')),
        std=_plain(settings.get('std')),
        pad_divisor=divisor or 1)


def describe(cfg: Config, model: nn.Module) -> Dict[str, Any]:
    """The above, with the config's steps of preparing a picture, and its data set's classes and colours."""
    meta = getattr(model, 'dataset_meta', None) or getattr(model, '_dataset_meta', None) or {}
    steps = map(_plain, cfg.test_dataloader.dataset.pipeline)
    return dict(
        preprocessing(cfg),
        pipeline=[step for step in steps if not re.match('Load|Pack', step['type'])],
        dataset_meta={key: _plain(meta[key]) for key in ('classes', 'palette') if meta.get(key)},
        mmsoft=__version__)


def _plain(value: Any) -> Any:
    """What JSON makes of a part of a config."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else getattr(value, '__name__', str(value))
