"""What is checked before training and testing: missing files, and parts of a config that do not fit each other."""
import json
import logging
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from torch.utils.data import Dataset

from ..checkpoint import FAMILIES, check_model, read_checkpoint
from ..utils import UsageError
from ..utils.config import datasets, dicts, is_pretrained, type_name

DOWNLOADING = ('CIFAR10', 'CIFAR100', 'MNIST', 'FashionMNIST')
"""Data sets that the OpenMMLab libraries download."""
HEAD = re.compile(r'(^|\.)(bbox_head|mask_head|decode_head|auxiliary_head|head)(\.\d+)?$')
"""Names of modules whose ``num_classes`` is the number of the data set's classes."""


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
        UsageError: If one is missing, or if evaluation compares with the annotations of other data.
    """
    read = [(key, dataset) for key, dataset in datasets(cfg)
            if key.split('.')[0] in loaders and type_name(dataset) not in DOWNLOADING]
    needed = [(f'{key}.data_root=DIR', path) for key, dataset in read for path in _files(dataset)]
    evaluators = {loader: loader.replace('dataloader', 'evaluator') for loader in loaders}
    compared = [(loader, f'{name}.ann_file', part['ann_file']) for loader, name in evaluators.items()
                for part in dicts(cfg.get(name)) if part.get('ann_file')]
    for option, path in needed + [(f'{option}=FILE', path) for _, option, path in compared]:
        if path and _missing(path):
            raise UsageError(f'{path} is missing: put it there, or a link to it, or point elsewhere with --cfg-options '
                             f'{option}, or try a config of mmsoft on synthetic data with --demo-data.')
    for loader, option, path in compared:
        own = [_files(dataset)[0] for key, dataset in read if key.startswith(loader) and dataset.get('ann_file')]
        if own and Path(path).resolve() not in [Path(one).resolve() for one in own]:
            raise UsageError(f'{option} is {path}, and {loader} reads {", ".join(own)}: set both to the same file.')


def check_pretrained(cfg: Config) -> None:
    """Checks that the pretrained weights that training starts from are where the config says.

    Raises:
        UsageError: If a file is missing; says which weights are published, and how to do without.
    """
    parts = list(dicts(cfg.model))
    paths = [cfg.get('load_from'), *(part.get('pretrained') for part in parts),
             *(part['checkpoint'] for part in parts if is_pretrained(part))]
    for path in paths:
        if isinstance(path, str) and _missing(path):
            built = {type_name(part).lower() for part in parts}  # SimAXCiT is of the family sima_xcit
            published = [family.weights for name, family in FAMILIES.items() if name.replace('_', '') in built]
            raise UsageError(f'The pretrained weights {path} are missing (published weights: '
                             f'{"; ".join(published) or "ask their authors"}): put the file there, or train from '
                             'random weights with --from-scratch.')
    if cfg.get('load_from'):
        check_checkpoint(cfg.load_from)


def check_checkpoint(path: str) -> None:
    """Checks that a checkpoint exists and can be read safely, before anything is built or written.

    Raises:
        UsageError: If it does not, or cannot.
    """
    if _missing(path):
        raise UsageError(f'There is no checkpoint {path}; training leaves them in its --work-dir, as epoch_N.pth or '
                         'iter_N.pth.')
    if '://' not in path:
        read_checkpoint(path, peek=True)


def check_operators(cfg: Config) -> None:
    """Checks that mmcv's operators run on the GPU, where there is one; only detectors cannot do without.

    Raises:
        UsageError: If mmcv was compiled for CPUs alone and the config is a detector's.
    """
    if not torch.cuda.is_available():
        return
    try:
        from mmcv.ops import get_compiling_cuda_version
        compiled = get_compiling_cuda_version() != 'not available'
    except ImportError:  # mmcv-lite
        compiled = False
    if compiled:
        return
    said = ('mmcv was compiled without CUDA, so its operators do not run on this GPU: install a CUDA toolkit '
            f'{torch.version.cuda} with nvcc, set CUDA_HOME to it, FORCE_CUDA=1 and TORCH_CUDA_ARCH_LIST to the '
            'architecture of your GPU, and run `make setup` (or build mmcv) again')
    if cfg.default_scope == 'mmdet':
        raise UsageError(f'{said}; or hide the GPU with CUDA_VISIBLE_DEVICES= to compute on the CPU.')
    print_log(f'{said}.', logger='current', level=logging.WARNING)


def check_dataset(dataset: Dataset) -> None:
    """Checks a data set that an OpenMMLab library has built.

    Raises:
        UsageError: If it is empty, or if its classes are not a sequence or not the categories of its COCO file.
    """
    parts = getattr(dataset, 'datasets', [dataset.dataset] if hasattr(dataset, 'dataset') else [])
    for part in parts:
        check_dataset(part)
    classes = getattr(dataset, 'metainfo', {}).get('classes') or ()
    file = getattr(dataset, 'ann_file', '') or getattr(dataset, 'data_root', '') or type(dataset).__name__
    if isinstance(classes, str):
        raise UsageError(f'metainfo.classes of {file} is the word {classes!r}: write classes=({classes!r}, ), with a '
                         'comma.')
    if not parts and len(getattr(dataset, 'cat_ids', classes)) != len(classes):
        names = [one['name'] for one in json.loads(Path(file).read_text())['categories']]
        raise UsageError(f'{file} has the categories {", ".join(names)}, and the classes of the data set in the config '
                         f'are {", ".join(classes)}: set metainfo.classes to names in the file.')
    if not len(dataset):
        raise UsageError(f'{file} has no samples to work on: check its files, metainfo.classes and filter_cfg.')
    if not parts and hasattr(dataset, 'cat_ids') and not dataset.test_mode and not any(
            dataset.get_data_info(index)['instances'] for index in range(len(dataset))):
        raise UsageError(f'{file} has no boxes of the classes {", ".join(classes)} inside its images to learn from.')


def check_failed_data(cfg: Config, *loaders: str) -> None:
    """Looks for the reason in the loaders' data sets after an OpenMMLab library could not build a config.

    mmengine cannot build an empty data set, and does not say that it is empty.

    Raises:
        UsageError: See :func:`check_dataset`.
    """
    for key, dataset in datasets(cfg):
        if key.split('.')[0] not in loaders:
            continue
        try:
            with DATASETS.switch_scope_and_registry(cfg.default_scope) as registry:
                built = registry.build(dict(dataset, pipeline=[], serialize_data=False))
        except Exception:  # the same that is to be explained
            continue
        check_dataset(built)


@contextmanager
def explained(config: str) -> Iterator['CheckHook']:
    """Makes a UsageError of whatever is raised before all of a config is built; what is raised later stays as it is.

    Args:
        config: Path of the config.

    Yields:
        A hook for the runner, which knows when all is built.
    """
    hook = CheckHook()
    try:
        yield hook
    except Exception as error:
        if hook.built or isinstance(error, UsageError):
            raise
        raise UsageError(f'{config} cannot be run ({type(error).__name__}: {error}); --traceback shows where it was '
                         'raised.') from error


class CheckHook(Hook):
    """Checks what was built of a config, and the checkpoint that is loaded.

    Attributes:
        loaders: Names of the loaders in use.
        built: Whether the OpenMMLab libraries have built everything.
    """

    priority = 'HIGHEST'

    def __init__(self, *loaders: str) -> None:
        self.loaders = loaders
        self.built = False

    def before_run(self, runner: Runner) -> None:
        """Checks data sets, and that heads and data sets have the same classes.

        Raises:
            UsageError: If something does not fit.
        """
        self.built = True
        checked = [getattr(runner, name).dataset for name in self.loaders]
        for dataset in checked:
            check_dataset(dataset)
        classes = [tuple(getattr(dataset, 'metainfo', {}).get('classes') or ()) for dataset in checked]
        folders = [tuple(getattr(dataset, 'folder_to_idx', ())) for dataset in checked]  # mmpretrain's
        for found in (classes, folders):
            if len(set(filter(None, found))) > 1:
                raise UsageError('Training and validation data have different classes, make them the same: '
                                 f'{"; ".join(map(", ".join, found))}.')
        names = classes[0]
        exact = runner.default_scope.scope_name == 'mmdet'
        for name, module in runner.model.named_modules():
            count = getattr(module, 'num_classes', None)
            if names and HEAD.search(name) and isinstance(count, int) and (count != len(names) if exact else
                                                                           count < len(names)):
                raise UsageError(f'model.{name} has num_classes={count}, and the data set has {len(names)} classes '
                                 f'({", ".join(names[:9])}{", …" * (len(names) > 9)}): set both to the same.')

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Checks that a checkpoint is the model's: mmengine only warns, and goes on from random weights.

        Raises:
            UsageError: If it is not, or if training cannot resume from it.
        """
        path, resumed = runner.cfg.load_from, runner.cfg.get('resume', False)
        for part in ('meta', 'message_hub', 'optimizer') if resumed else ():
            if not isinstance(checkpoint.get(part), dict):
                raise UsageError(f'{path} has no {part}, so training cannot resume from it; start from its weights '
                                 f'with --cfg-options load_from={path}.')
        check_model(runner.model, path, whole=resumed or 'test_dataloader' in self.loaders, checkpoint=checkpoint)
