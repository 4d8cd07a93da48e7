"""What is checked before training and testing: missing files, and parts of a config that do not fit each other."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

from mmengine.config import Config
from torch import nn
from torch.utils.data import Dataset

from ..checkpoint import read_checkpoint
from ..datasets.demo import on_shapes, retarget
from ..utils import UsageError
from ..utils.config import datasets, dicts, is_pretrained, load_config, type_name

DOWNLOADING = ('CIFAR10', 'CIFAR100', 'MNIST', 'FashionMNIST')
"""Data sets that the OpenMMLab libraries download."""
HEADS = ('bbox_head', 'mask_head', 'decode_head', 'auxiliary_head', 'head')
"""Names of modules whose ``num_classes`` is the number of the data set's classes."""


@contextmanager
def explained(config: str) -> Iterator[None]:
    """Makes a UsageError of whatever is raised while a config is read and built."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        reason = f'{type(error).__name__}: {error}'
        if 'need at least one array' in reason:  # mmengine's word for an empty data set
            reason = 'a data set has no samples: check its files, metainfo.classes and filter_cfg'
        raise UsageError(f'{config} cannot be run ({reason}); --traceback shows where it was raised.') from error


def _missing(path: str) -> bool:
    return '://' not in path and not Path(path).exists()


def files_of(dataset: dict[str, Any]) -> list[str]:
    """What a data set reads: its annotation file and its folders, or else its root."""
    split = dataset.get('split') if type_name(dataset).startswith('ImageNet') else ''
    prefix = dataset.get('data_prefix') or split or ''
    parts = [dataset.get('ann_file'), *(prefix.values() if isinstance(prefix, dict) else [prefix])]
    root = dataset.get('data_root') or ''
    return [str(Path(root, part)) for part in parts if part] or [root]


def check_data(cfg: Config, *loaders: str) -> None:
    """Raises UsageError if a file of the loaders' data sets is missing, or if evaluation compares with another one."""
    for loader in loaders:
        evaluator = loader.replace('dataloader', 'evaluator')
        read = [
            (key, dataset)
            for key, dataset in datasets(cfg)
            if key.startswith(loader) and type_name(dataset) not in DOWNLOADING
        ]
        compared = [part['ann_file'] for part in dicts(cfg.get(evaluator)) if part.get('ann_file')]
        needed = [(f'{key}.data_root=DIR', path) for key, dataset in read for path in files_of(dataset) if path]
        for option, path in needed + [(f'{evaluator}.ann_file=FILE', path) for path in compared]:
            if _missing(path):
                raise UsageError(
                    f'{path} is missing: put it there, or a link to it, or point elsewhere with --cfg-options '
                    f'{option}, or try a config of mmsoft on synthetic data with --demo-data.'
                )
        own = [files_of(dataset)[0] for _, dataset in read if dataset.get('ann_file')]
        for path in compared:
            if own and Path(path).resolve() not in [Path(one).resolve() for one in own]:
                raise UsageError(
                    f'{evaluator}.ann_file is {path}, and {loader} reads {", ".join(own)}: set both to one file.'
                )


def config_on_data(config: str, options: Optional[dict[str, Any]], demo_data: bool, *loaders: str) -> Config:
    """Reads a config with settings of the user, on the synthetic shapes data set if asked, and finds the loaders' data.

    Raises:
        UsageError: If files are missing, or the config does not fit the synthetic shapes data set.
    """
    cfg = load_config(config)
    options = options or {}
    if demo_data:
        cfg = retarget(cfg, options.get('train_cfg.max_epochs') or options.get('train_cfg.max_iters'))
    cfg.merge_from_dict(options)
    if not on_shapes(cfg):
        check_data(cfg, *loaders)
    return cfg


def check_pretrained(cfg: Config) -> None:
    """Raises UsageError if weights that training starts from are missing."""
    parts = list(dicts(cfg.model))
    for path in [
        cfg.get('load_from'),
        *(part.get('pretrained') for part in parts),
        *(part['checkpoint'] for part in parts if is_pretrained(part)),
    ]:
        if isinstance(path, str) and _missing(path):
            raise UsageError(
                f'The pretrained weights {path} are missing: put the file there (docs/pretrained_weights.md says where '
                'weights are published), or train from random weights with --from-scratch.'
            )


def check_exists(checkpoint: str) -> None:
    """Raises UsageError if there is no such file, before anything is built."""
    if _missing(checkpoint):
        raise UsageError(
            f'There is no checkpoint {checkpoint}; training leaves them in its --work-dir, as epoch_N.pth or '
            'iter_N.pth.'
        )


def check_resumable(checkpoint: str) -> None:
    """Raises UsageError if a checkpoint lacks what training resumes from."""
    content = read_checkpoint(checkpoint, peek=True)
    for part in ('meta', 'message_hub', 'optimizer'):
        if not isinstance(content.get(part), dict):
            raise UsageError(
                f'{checkpoint} has no {part}, so training cannot resume from it; start from its weights '
                f'with --cfg-options load_from={checkpoint}.'
            )


def check_classes(dataset: Dataset, model: nn.Module, exact: bool) -> None:
    """Checks that the classes of a data set are in its COCO file, and that the heads have as many.

    Args:
        dataset: The data set; those that it combines or repeats are checked, too.
        model: The model; modules called as in :data:`HEADS` are checked.
        exact: Whether a head must not have more classes than the data set.

    Raises:
        UsageError: If not.
    """
    for part in getattr(dataset, 'datasets', [getattr(dataset, 'dataset', None)]):
        if part is not None:
            check_classes(part, model, exact)
    classes = getattr(dataset, 'metainfo', {}).get('classes') or ()
    named = f'{", ".join(classes[:9])}{", …" * (len(classes) > 9)}'
    if len(getattr(dataset, 'cat_ids', classes)) != len(classes):
        names = [one['name'] for one in json.loads(Path(dataset.ann_file).read_text())['categories']]
        raise UsageError(
            f'{dataset.ann_file} has the categories {", ".join(names)}, and the classes of the data set in the config '
            f'are {named}: set metainfo.classes to names in the file.'
        )
    for name, module in model.named_modules() if classes else ():
        is_head, count = name.rstrip('.0123456789').split('.')[-1] in HEADS, getattr(module, 'num_classes', None)
        if is_head and isinstance(count, int) and (count < len(classes) or (exact and count > len(classes))):
            raise UsageError(
                f'model.{name} has num_classes={count}, and the data set has {len(classes)} classes ({named}): set '
                'both to the same.'
            )
