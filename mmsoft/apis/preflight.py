"""What is checked before training and testing: missing files, and parts of a config that do not fit each other."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import Dataset

from ..checkpoint import FAMILIES, check_model, read_checkpoint
from ..datasets.demo import on_shapes, retarget
from ..utils import UsageError
from ..utils.config import datasets, dicts, is_pretrained, load_config, type_name

DOWNLOADING = ('CIFAR10', 'CIFAR100', 'MNIST', 'FashionMNIST')
"""Data sets that the OpenMMLab libraries download."""
HEADS = ('bbox_head', 'mask_head', 'decode_head', 'auxiliary_head', 'head')
"""Names of modules whose ``num_classes`` is the number of the data set's classes."""


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
    """Raises UsageError if weights that training starts from are missing: says which are published."""
    parts = list(dicts(cfg.model))
    paths = [
        cfg.get('load_from'),
        *(part.get('pretrained') for part in parts),
        *(part['checkpoint'] for part in parts if is_pretrained(part)),
    ]
    for path in paths:
        if isinstance(path, str) and _missing(path):
            built = {type_name(part).lower() for part in parts}  # SimAXCiT is of the family sima_xcit
            published = [family.weights for name, family in FAMILIES.items() if name.replace('_', '') in built]
            raise UsageError(
                f'The pretrained weights {path} are missing (published weights: '
                f'{"; ".join(published) or "ask their authors"}): put the file there, or train from '
                'random weights with --from-scratch.'
            )
    if cfg.get('load_from'):
        check_checkpoint(cfg.load_from)


def check_checkpoint(path: str) -> None:
    """Raises UsageError if a checkpoint does not exist or cannot be read safely, before anything is built."""
    if _missing(path):
        raise UsageError(
            f'There is no checkpoint {path}; training leaves them in its --work-dir, as epoch_N.pth or iter_N.pth.'
        )
    if '://' not in path:
        read_checkpoint(path, peek=True)


def check_dataset(dataset: Dataset) -> None:
    """Raises UsageError if a data set has classes that its COCO file does not have."""
    for part in getattr(dataset, 'datasets', [getattr(dataset, 'dataset', None)]):
        if part is not None:
            check_dataset(part)
    classes = getattr(dataset, 'metainfo', {}).get('classes') or ()
    if len(getattr(dataset, 'cat_ids', classes)) != len(classes):
        names = [one['name'] for one in json.loads(Path(dataset.ann_file).read_text())['categories']]
        raise UsageError(
            f'{dataset.ann_file} has the categories {", ".join(names)}, and the classes of the data set in the config '
            f'are {", ".join(classes)}: set metainfo.classes to names in the file.'
        )


def check_heads(model: nn.Module, classes: Sequence[str], exact: bool) -> None:
    """Raises UsageError if a head has not the same number of classes as the data set, or at least as many."""
    for name, module in model.named_modules() if classes else ():
        is_head, count = name.rstrip('.0123456789').split('.')[-1] in HEADS, getattr(module, 'num_classes', None)
        if is_head and isinstance(count, int) and (count < len(classes) or (exact and count > len(classes))):
            raise UsageError(
                f'model.{name} has num_classes={count}, and the data set has {len(classes)} classes '
                f'({", ".join(classes[:9])}{", …" * (len(classes) > 9)}): set both to the same.'
            )


@contextmanager
def explained(config: str, *loaders: str) -> Iterator['CheckHook']:
    """Makes a UsageError of whatever is raised before all of a config is built; what is raised later stays as it is.

    Yields a hook for the runner, which checks what was built for these loaders.
    """
    hook = CheckHook(*loaders)
    try:
        yield hook
    except Exception as error:
        if hook.built or isinstance(error, UsageError):
            raise
        reason = f'{type(error).__name__}: {error}'
        if 'need at least one array' in reason:  # mmengine's word for an empty data set
            reason = 'a data set has no samples: check its files, metainfo.classes and filter_cfg'
        raise UsageError(f'{config} cannot be run ({reason}); --traceback shows where it was raised.') from error


class CheckHook(Hook):
    """Checks what was built of a config, and the checkpoint that is loaded."""

    priority = 'HIGHEST'

    def __init__(self, *loaders: str) -> None:
        self.loaders = loaders  # those in use, by their keys in the config
        self.built = False  # whether the OpenMMLab libraries have built everything

    def before_run(self, runner: Runner) -> None:
        """Raises UsageError if data sets have other classes than their files or the heads."""
        self.built = True
        for dataset in [loader.dataset for loader in (getattr(runner, name, None) for name in self.loaders) if loader]:
            check_dataset(dataset)
            names = getattr(dataset, 'metainfo', {}).get('classes') or ()
            check_heads(runner.model, names, exact=runner.default_scope.scope_name == 'mmdet')

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Raises UsageError if a checkpoint is not the model's: mmengine warns, and goes on from random weights."""
        path, resumed = runner.cfg.load_from, runner.cfg.get('resume', False)
        for part in ('meta', 'message_hub', 'optimizer') if resumed else ():
            if not isinstance(checkpoint.get(part), dict):
                raise UsageError(
                    f'{path} has no {part}, so training cannot resume from it; start from its weights '
                    f'with --cfg-options load_from={path}.'
                )
        check_model(runner.model, path, whole=resumed or 'test_dataloader' in self.loaders, checkpoint=checkpoint)
