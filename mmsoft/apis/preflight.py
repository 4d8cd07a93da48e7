"""What can be known to be missing before a model is built."""
import traceback
from functools import wraps
from pathlib import Path
from typing import Any, Callable, Dict, List

from mmengine.config import Config

from ..checkpoint import read_checkpoint
from ..utils import UsageError
from ..utils.config import datasets, dicts, type_name

PUBLISHED = dict(SOFT='the README of fudan-zvg/SOFT on GitHub', SimA='the README of UCDvision/sima on GitHub')
"""Where the weights of a backbone are to be had, by the beginning of its type's name."""
DOWNLOADING = ('CIFAR10', 'CIFAR100', 'MNIST', 'FashionMNIST')
"""Data sets that the hosts download by themselves."""


def _missing(path: str) -> bool:
    return '://' not in path and not Path(path).exists()


def _files(dataset: Dict[str, Any]) -> List[str]:
    """What a data set reads: its annotation file and its folders, or else its root."""
    split = dataset.get('split') if type_name(dataset).startswith('ImageNet') else ''
    prefix = dataset.get('data_prefix') or split or ''
    parts = [dataset.get('ann_file'), *(prefix.values() if isinstance(prefix, dict) else [prefix])]
    root = dataset.get('data_root') or ''
    return [str(Path(root, part)) for part in parts if part] or [root]


def check_data(cfg: Config, *loaders: str) -> None:
    """Checks that the files of loaders' data sets, and those that evaluation compares with, are where the config says.

    Raises:
        UsageError: If one is missing; says which, how to point elsewhere, and how to do without.
    """
    read = [(f'{key}.data_root=DIR', dataset) for key, dataset in datasets(cfg)
            if key.split('.')[0] in loaders and type_name(dataset) not in DOWNLOADING]
    for name in (loader.replace('dataloader', 'evaluator') for loader in loaders):
        read += [(f'{name}.ann_file=FILE', dict(ann_file=part.get('ann_file'))) for part in dicts(cfg.get(name))]
    for option, part in read:
        for path in _files(part):
            if path and _missing(path):
                raise UsageError(f'{path} is missing: put it there, or a link to it, or point elsewhere with '
                                 f'--cfg-options {option}, or try this config on generated data with --demo-data.')


def check_pretrained(cfg: Config) -> None:
    """Checks that the pretrained weights that training starts from are where the config says.

    Raises:
        UsageError: If a file is missing; says which, who publishes it, and how to do without. Or if ``load_from`` holds
            no weights, or something that could run.
    """
    parts = list(dicts(cfg.model))
    paths = [cfg.get('load_from'), *(part.get('pretrained') for part in parts),
             *(part['checkpoint'] for part in parts if type_name(part) == 'Pretrained')]
    for path in paths:
        if isinstance(path, str) and _missing(path):
            authors = [where for start, where in PUBLISHED.items()
                       if any(type_name(part).startswith(start) for part in parts)]
            raise UsageError(f'The pretrained weights {path} are missing: get them from '
                             f'{" or ".join(authors) or "where their authors publish them"} and put them there, or '
                             'train from random weights with --from-scratch.')
    if cfg.get('load_from') and '://' not in cfg.load_from:
        read_checkpoint(cfg.load_from)


def check_checkpoint(path: str, of_training: bool = False) -> None:
    """Checks that a checkpoint exists and holds nothing that could run, and if need be what training goes on from.

    Raises:
        UsageError: If it does not.
    """
    if _missing(path):
        raise UsageError(f'There is no checkpoint {path}; training leaves them in its --work-dir, as epoch_N.pth or '
                         'iter_N.pth.')
    checkpoint = read_checkpoint(path)
    for part in ('meta', 'message_hub', 'optimizer') if of_training else ():
        if not isinstance(checkpoint.get(part), dict):
            raise UsageError(f'{path} has no {part}, so training cannot go on from it; begin with its weights, with '
                             f'--cfg-options load_from={path}.')


def explained(run: Callable) -> Callable:
    """Makes what goes wrong with a config, before its first iteration, an error of its user's.

    Whatever the hosts raise while they build becomes a UsageError, a sentence on the config; ``python -X dev`` shows
    where it came from.

    Args:
        run: Takes the path of a config as its first argument.
    """

    @wraps(run)
    def explain(config: str, *args, **kwargs) -> Any:
        try:
            return run(config, *args, **kwargs)
        except UsageError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            if any(Path(frame.filename).name == 'loops.py' and frame.name == 'run' for frame in frames):
                raise
            if any(frame.name == '_serialize_data' for frame in frames):  # mmengine's, of a data set's samples
                raise UsageError(f'{config} cannot be run: one of its data sets has no samples; if it had some a moment '
                                 'ago, files have vanished since.') from error
            raise UsageError(f'{config} cannot be run ({type(error).__name__}: {error}).') from error

    return explain
