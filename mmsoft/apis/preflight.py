"""What can be known to be missing before a model is built."""
from pathlib import Path
from typing import Any, Dict, Iterator, List

from mmengine.config import Config

from ..checkpoint import read_checkpoint
from ..utils.config import EVALUATORS, datasets, dicts, type_name
from ..utils.errors import UsageError

PUBLISHED = dict(SOFT='the README of fudan-zvg/SOFT on GitHub', SimA='the README of UCDvision/sima on GitHub')
"""Where the weights of a backbone are to be had, by the beginning of its type's name."""
DOWNLOADING = ('CIFAR10', 'CIFAR100', 'MNIST', 'FashionMNIST')
"""Data sets that the hosts download by themselves."""


def _missing(path: str) -> bool:
    return '://' not in path and not Path(path).exists()


def _parts(dataset: Dict[str, Any]) -> List[str]:
    """What a data set reads, below its root: annotation file, folders, or nothing in particular."""
    split = dataset.get('split') if type_name(dataset).startswith('ImageNet') else ''
    prefix = dataset.get('data_prefix') or split or ''
    parts = [dataset.get('ann_file'), *(prefix.values() if isinstance(prefix, dict) else [prefix])]
    return [part for part in parts if part]


def _advice(cfg: Config, root: str, used: List[str]) -> str:
    options = [f'{key}.data_root=DIR' for key in used]
    for name in EVALUATORS:
        if name.split('_')[0] in {key.split('_')[0] for key in used}:
            for evaluator in dicts(cfg.get(name)):
                if str(evaluator.get('ann_file', '')).startswith(root):
                    options.append(f'{name}.ann_file=DIR/{evaluator["ann_file"][len(root):].lstrip("/")}')
    return ' '.join(options)


def check_data(cfg: Config, *loaders: str) -> None:
    """Checks that the files of the data sets are where the config says.

    Args:
        cfg: A whole config.
        *loaders: Names of the loaders that will be used.

    Raises:
        UsageError: If one is missing; says which, how it should lie, how to point elsewhere, and how to do without.
    """
    used = {
        key: dataset
        for key, dataset in datasets(cfg) if key.split('.')[0] in loaders and type_name(dataset) not in DOWNLOADING
    }
    for key, dataset in used.items():
        root = dataset.get('data_root') or ''
        parts = _parts(dataset)
        missing = [path for path in (str(Path(root, part)) for part in parts or ['']) if _missing(path)]
        if not missing:
            continue
        same_root = [other for other, one in used.items() if (one.get('data_root') or '') == root]
        layout = sorted({part.rstrip('/') for other in same_root for part in _parts(used[other])})
        raise UsageError(
            f'{missing[0]} is missing: put the data set or a link to it at {root or "."}' +
            (f' so that it holds {", ".join(layout)}' if layout else '') +
            f', or point elsewhere with --cfg-options {_advice(cfg, root, same_root)}'
            ', or try this config on generated data with --demo-data.')
    for name in EVALUATORS:
        for evaluator in dicts(cfg.get(name)) if name.replace('evaluator', 'dataloader') in loaders else ():
            path = evaluator.get('ann_file') or ''
            if path and _missing(path):
                raise UsageError(f'{path}, which the evaluation compares with, is missing: put it there, or point '
                                 f'elsewhere with --cfg-options {name}.ann_file=FILE.')


def _checkpoints(cfg: Config) -> Iterator[str]:
    if cfg.get('load_from'):
        yield cfg.load_from
    for part in dicts(cfg.model):
        if type_name(part) == 'Pretrained':
            yield part['checkpoint']
        elif isinstance(part.get('pretrained'), str):
            yield part['pretrained']


def check_pretrained(cfg: Config) -> None:
    """Checks that the pretrained weights that training starts from are where the config says.

    Raises:
        UsageError: If a file is missing; says which, who publishes it, and how to do without.
    """
    names = [type_name(part) for part in dicts(cfg.model)]
    authors = [where for start, where in PUBLISHED.items() if any(name.startswith(start) for name in names)]
    for path in _checkpoints(cfg):
        if _missing(path):
            raise UsageError(f'The pretrained weights {path} are missing: get them from '
                             f'{" or ".join(authors) or "where their authors publish them"} and put them there, or '
                             'train from random weights with --from-scratch.')


def check_checkpoint(path: str) -> None:
    """Checks that a checkpoint exists and holds weights and nothing that could run.

    Raises:
        UsageError: If it does not.
    """
    if _missing(path):
        raise UsageError(f'There is no checkpoint {path}; training leaves them in its --work-dir, as epoch_N.pth or '
                         'iter_N.pth.')
    read_checkpoint(path)
