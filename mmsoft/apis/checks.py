"""Checks that the parts of a config fit each other, before training and testing begin."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.utils import is_abs
from torch import nn
from torch.utils.data import Dataset

from mmsoft.checkpoint import read_checkpoint
from mmsoft.utils import UsageError
from mmsoft.utils.config import datasets, dicts, type_name

HEADS = ('bbox_head', 'mask_head', 'decode_head', 'auxiliary_head', 'head')  # their num_classes is the data set's
NO_CLASSES = ('STDCHead', 'GroundingDINOHead', 'ATSSVLFusionHead', 'LinearReIDHead', 'VPDDepthHead')  # except these


def check_evaluators(cfg: Config, *loops: str) -> None:
    """Raises UsageError if an evaluator's file is not its data set's or lacks fields, or topk exceeds the classes."""
    model = cfg.get('model') or {}
    count = model['head'].get('num_classes') if isinstance(model.get('head'), dict) else None
    for name in loops:
        sets = [one for one in datasets(cfg, f'{name}_dataloader') if one.get('ann_file')]
        own = [Path('' if is_abs(file := str(one['ann_file'])) else one.get('data_root') or '', file) for one in sets]
        metrics = list(dicts(cfg.get(f'{name}_evaluator')))
        for metric in metrics:
            kind = type_name(metric)
            if count and kind == 'Accuracy' and np.max(metric.get('topk') or 1) > count:
                raise UsageError(f'{name}_evaluator.topk is {metric["topk"]}, and there are {count} classes; set (1,).')
            if not metric.get('ann_file') or kind == 'COCOCaption':  # its captions are in another file
                continue
            file = Path(metric['ann_file'])
            is_of_things = kind == 'CocoMetric' and 'CocoPanopticMetric' in map(type_name, metrics)  # in another file
            if own and not is_of_things and file.resolve() not in [path.resolve() for path in own]:
                reads = f'{name}_dataloader reads {", ".join(map(str, own))}'
                raise UsageError(f'{name}_evaluator.ann_file is {file}, and {reads}: set both to one file.')
            if kind == 'CocoMetric' and file.is_file():
                _check_annotations(file, metric, sets)


def _check_annotations(file: Path, metric: dict[str, Any], sets: list[dict[str, Any]]) -> None:
    """Raises UsageError if an object of the data sets' classes lacks what pycocotools needs to count it."""
    content = json.loads(file.read_text())
    names = {one['id']: one['name'] for one in content.get('categories', ())}
    given = [(one.get('metainfo') or {}).get('classes') for one in sets]  # or the name of a file with them
    scored = {name for one in given for name in (one if one and not isinstance(one, str) else names.values())}
    for number, one in enumerate(content.get('annotations', ())):
        if names.get(one.get('category_id')) not in scored:
            continue
        place = f'annotations[{number}] of {file}'
        if 'area' not in one or 'iscrowd' not in one:
            raise UsageError(f'{place} lacks area or iscrowd (0 for one object).')
        shapes = one.get('segmentation') or [()]
        first = shapes[0] if isinstance(shapes, list) else shapes  # all that pycocotools looks at
        if 'segm' in metric.get('metric', ()) and not (isinstance(first, dict) or np.size(first) > 4):
            raise UsageError(f'{place} has no polygon of 3 points, which segm needs.')
        if isinstance(one.get('id'), str) and one['id'].strip(' +-.0123456789_eE'):
            raise UsageError(f'{place} has the id {one["id"]!r}, and scores need numbers.')
        if one.get('id') in (0, '0'):  # pycocotools' mark of unmatched detections
            print_log(f'{place} has the id 0, which scores never count: begin with 1.')


def check_resumable(checkpoint: str) -> None:
    """Raises UsageError if a checkpoint lacks what training resumes from."""
    content = read_checkpoint(checkpoint, peek=True)
    if missing := [one for one in ('meta', 'message_hub', 'optimizer') if not isinstance(content.get(one), dict)]:
        start = f'start from its weights with --cfg-options load_from={checkpoint}'
        raise UsageError(f'{checkpoint} has no {missing[0]}, so training cannot resume from it; {start}.')


def check_objects(dataset: Dataset) -> None:
    """Raises UsageError if no image of a detector's data set has an object; mmdet leaves out boxes below one pixel."""
    infos = map(dataset.get_data_info, range(len(dataset))) if hasattr(dataset, 'get_data_info') else [{}]
    if not any(info.get('instances', True) for info in infos):  # videos have images instead
        form = "COCO's boxes are [x, y, width, height] in pixels, image_id and category_id ids of an image and category"
        raise UsageError(f'{getattr(dataset, "ann_file", "The data set")} has no objects of its classes; {form}.')


def check_mixing(model: nn.Module) -> None:
    """Raises UsageError if mmpretrain's batch augmentation mixes labels for other num_classes than the head's."""
    mixes = getattr(model, 'data_preprocessor', None)
    count = getattr(getattr(model, 'head', None), 'num_classes', None)
    if count and getattr(mixes, 'batch_augments', None) and mixes.num_classes not in (None, count):
        raise UsageError(f'num_classes is {count} in model.head, {mixes.num_classes} in data_preprocessor: set both.')


def check_order(dataset: Dataset, trained: Any) -> Any:
    """Raises UsageError if labels differ from ``trained``, a metainfo; returns it, or the data set's own if None."""
    own = getattr(dataset, 'metainfo', {})
    classes, before = (list(one.get('classes') or ()) if isinstance(one, dict) else [] for one in (own, trained))
    for label, name in enumerate(classes):
        if name in before and before[label : label + 1] != [name]:
            remedy = 'keep its order, also of categories in COCO files; a class without images needs an empty folder'
            raise UsageError(f'{name} is class {label}, and was class {before.index(name)} in training: {remedy}.')
    return trained or own


def check_classes(dataset: Dataset, model: nn.Module, exact: bool) -> None:
    """Raises UsageError if classes or their order differ from a COCO file's, or palette or heads have not one for each.

    Data sets inside ``dataset`` are checked, too. Heads (see :data:`HEADS`) may have more classes unless ``exact``.
    """
    exact = exact and 'classes' not in getattr(getattr(dataset, 'dataset', dataset), 'ignore_keys', ())  # may differ
    for part in getattr(dataset, 'datasets', [dataset.dataset] if hasattr(dataset, 'dataset') else ()):
        check_classes(part, model, exact)
    metainfo = getattr(dataset, 'metainfo', {})
    classes, palette = metainfo.get('classes') or (), metainfo.get('palette')
    if isinstance(classes, str):
        raise UsageError(f'metainfo.classes is a text: one class needs a comma behind it, as in ({classes!r},).')
    if np.ndim(palette) == 2 and len(palette) < len(classes):  # (r, g, b) alone is for all
        raise UsageError(f"metainfo.palette has {len(palette)} colours for {len(classes)} classes; 'random' is enough.")
    if sorted(classes) == list(getattr(dataset, 'folder_to_idx', ())) != list(classes):
        raise UsageError(f'{dataset.img_prefix} has folders in the order {sorted(classes)}: set classes to it.')
    named = ', '.join([*classes[:9], '…'] if len(classes) > 9 else classes)
    in_videos = getattr(dataset, 'cat_ids', ()) if hasattr(dataset, 'get_len_per_video') else ()  # they may use 1 of 13
    if getattr(dataset, 'cat_ids', None) is not None:
        _check_categories(dataset, list(classes), named, len(in_videos or classes))
    wanted = len(in_videos or metainfo.get('thing_classes') or classes)  # heads for panoptic data detect things
    for name, module in model.named_modules() if classes else ():
        is_head = name.rstrip('.0123456789').split('.')[-1] in HEADS and type(module).__name__ not in NO_CLASSES
        count = getattr(module, 'num_classes', None)
        if is_head and isinstance(count, int) and (count < wanted or (exact and count > wanted)):
            raise UsageError(f'model.{name} has num_classes={count}; set {wanted}, as the data set has ({named}).')


def _check_categories(dataset: Dataset, classes: list[str], named: str, count: int) -> None:
    """Raises UsageError if a COCO file does not have ``count`` of the classes, or has them in another order."""
    file, ids = Path(str(getattr(dataset, 'ann_file', ''))), dataset.cat_ids  # the file may be a list
    is_complete = len(ids) == count
    is_known = is_complete and classes == list(getattr(dataset, 'METAINFO', {}).get('classes') or ())
    if not file.is_file() or (is_known and file.stat().st_size >= 1e8):  # COCO's own file takes long to read
        return
    text, key = file.read_text(), '"categories"'
    is_alone, start = text.count(key) == 1, text.find('[', text.find(key))  # to parse the rest, too, takes long
    listed = json.JSONDecoder().raw_decode(text, start)[0] if is_alone else json.loads(text)['categories']
    names = {one['id']: one['name'] for one in listed}
    found = [names[number] for number in ids]  # in the order of their labels
    if not is_complete or (found != classes and set(found) == set(classes)):
        own = f'metainfo.classes has {named}: set it to names in the file, in this order'
        raise UsageError(f'{file} has the categories {", ".join(found if is_complete else names.values())}, and {own}.')
