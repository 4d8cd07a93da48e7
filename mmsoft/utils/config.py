"""Reading configs and rewriting them."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EPIPE
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Optional

from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE

from . import UsageError
from .files import DISK

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
SCOPES = ('mmdet', 'mmseg', 'mmpretrain')
COCO_FIELDS = ('categories', 'file_name', 'height', 'width', 'image_id', 'category_id', 'area', 'bbox')
Options = Optional[dict[str, Any]]


def load_config(path: str, options: Options = None) -> Config:
    """Reads a config file: .py, .json, .yaml or .yml; ``options``, with dotted keys, override its settings.

    Raises UsageError if it cannot be read as a config, or is of another library than mmdet, mmseg and mmpretrain.
    """
    with suppress(PackageNotFoundError):
        version('onedl-mmsegmentation')  # a fork: mmengine would look for 'mmseg::…' in mmsegmentation
        MODULE2PACKAGE['mmseg'] = 'mmseg'
    try:
        cfg = Config.fromfile(path)
        cfg.merge_from_dict(options or {})
        kind = cfg.model.get('type', '') if isinstance(cfg.get('model'), dict) else ''
        for nms in [part['nms'] for part in dicts(cfg.get('model')) if isinstance(part.get('nms'), dict)]:
            if str(nms.get('type')).startswith('mmcv.'):  # a path, in copies of pure Python configs; mmcv takes names
                nms['type'] = type_name(nms)
    except Exception as error:  # whatever is wrong in a file that is executed
        reason = f'{type(error).__name__}: {error}'
        raise UsageError(f'{path} cannot be read as a config ({reason}); --traceback shows where.') from error
    given = cfg.get('default_scope')
    cfg.default_scope = given or getattr(kind, '__module__', str(kind)).partition('.')[0]  # if kind is a class
    if cfg.default_scope not in SCOPES:
        raise UsageError(f'{path} has default_scope={given!r}; set one of {", ".join(SCOPES)}, or use mim for others.')
    return cfg


@contextmanager
def explained(config: str, done: str = 'run') -> Iterator[None]:
    """Turns exceptions while a config is built or run into UsageErrors; errors of the disk are raised unchanged."""
    try:
        yield
    except Exception as error:
        is_told = isinstance(error, UsageError) or isinstance(error.__context__, KeyboardInterrupt)
        if is_told or getattr(error, 'errno', None) in (*DISK, EPIPE):
            raise  # such as a full disk, a closed pipe or Ctrl-C, which the command line reports
        reason = f'{type(error).__name__}: {error}'[:1000]  # mmengine's may quote the whole config
        if isinstance(error, FileNotFoundError) and error.filename:
            place = 'put it there, or a link to it, or change data_root and ann_file of data sets and evaluators'
            raise UsageError(f'{error.filename} is missing: {place}; or try tools/train.py --demo-data.') from error
        if 'need at least one array' in reason:  # mmengine's error for an empty data set
            reason = 'a data set has no samples: check its files, metainfo.classes and filter_cfg'
        if isinstance(error, KeyError) and str(error).strip("'") in COCO_FIELDS:
            reason += ', which COCO files need'
        raise UsageError(f'{config} cannot be {done} ({reason}); --traceback shows where it was raised.') from error


def type_name(node: dict[str, Any], key: str = 'type') -> str:
    """Name of the type that a dict builds, without its scope; empty if it builds nothing."""
    built = node.get(key, '')
    return built.rpartition('.')[2] if isinstance(built, str) else getattr(built, '__name__', '')


def dicts(node: Any) -> Iterator[dict[str, Any]]:
    """All dicts of a part of a config, the outer ones first."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    for value in node if isinstance(node, (list, tuple)) else ():
        yield from dicts(value)


def datasets(cfg: Config, *loaders: str) -> Iterator[dict[str, Any]]:
    """The data sets of these loaders, or of all loaders, without their wrappers."""
    left = [cfg[loader]['dataset'] for loader in loaders or LOADERS if cfg.get(loader)]
    while left:
        dataset = left.pop(0)
        inner = [*dataset.get('datasets', ()), *([dataset['dataset']] if 'dataset' in dataset else [])]
        left = inner + left
        if not inner:
            yield dataset


def split_pretrained(init_cfg: Any) -> tuple[list, list]:
    """Splits an ``init_cfg`` into parts that do not load weights and parts that do, by initializer name or class."""
    found: tuple[list, list] = ([], [])
    for one in [init_cfg] if isinstance(init_cfg, dict) else init_cfg or []:
        found[type_name(one) in ('Pretrained', 'PretrainedInit')].append(one)
    return found


def without_pretrained(cfg: Config) -> Config:
    """A copy of the config that trains from random weights, including the stages and statistics that it freezes."""
    cfg = copy.deepcopy(cfg)
    for part in dicts(cfg.model):
        others, pretrained = split_pretrained(part.get('init_cfg'))
        if pretrained:
            part['init_cfg'] = others or None
        override(part, pretrained=None, frozen_stages=-1, norm_eval=False)
    cfg.load_from = None
    return cfg


def override(part: dict[str, Any], **settings: Any) -> None:
    """Replaces settings of a part of a config that it has."""
    part.update({key: value for key, value in settings.items() if key in part})
