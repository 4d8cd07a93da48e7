"""Error messages for configs that cannot be run, before training or testing begins."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config
from torch import nn
from torch.utils.data import Dataset

from ..checkpoint import read_checkpoint
from ..utils import UsageError
from ..utils.config import datasets, dicts

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
        if isinstance(error, FileNotFoundError) and error.filename:
            raise UsageError(
                f'{error.filename} is missing: put it there, or a link to it, or point elsewhere by data_root and '
                'ann_file of data sets and evaluators, or try a config of mmsoft on synthetic data with --demo-data.'
            ) from error
        if 'need at least one array' in reason:  # mmengine's word for an empty data set
            reason = 'a data set has no samples: check its files, metainfo.classes and filter_cfg'
        raise UsageError(f'{config} cannot be run ({reason}); --traceback shows where it was raised.') from error


def check_evaluators(cfg: Config, *loops: str) -> None:
    """Raises UsageError if the evaluator of a loop compares with another annotation file than its data set reads."""
    for loader, evaluator in ((f'{name}_dataloader', f'{name}_evaluator') for name in loops):
        read = [one for one in datasets(cfg, loader) if one.get('ann_file')]
        own = [str(Path(one.get('data_root') or '', one['ann_file'])) for one in read]
        for compared in [part['ann_file'] for part in dicts(cfg.get(evaluator)) if part.get('ann_file')]:
            if own and Path(compared).resolve() not in [Path(one).resolve() for one in own]:
                raise UsageError(
                    f'{evaluator}.ann_file is {compared}, and {loader} reads {", ".join(own)}: set both to one file.'
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


def check_objects(dataset: Dataset) -> None:
    """Raises UsageError if no image of a COCO data set has an object; mmdet leaves out boxes below one pixel."""
    if hasattr(dataset, 'cat_ids') and not any(dataset.get_data_info(i)['instances'] for i in range(len(dataset))):
        raise UsageError(
            f'{dataset.ann_file} has no objects for its images: boxes are [x, y, width, height] in pixels, and '
            'image_id of an annotation is the id of an image.'
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
