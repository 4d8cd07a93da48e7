"""What can be known to be wrong with pictures and annotations before a model is trained on them.

Annotation files are read as a whole, and all pictures looked for; of pictures and label maps, a sample is opened. What a
host would stumble over, or learn nothing from, is an error; what it leaves out is a warning, unless that is most of it.
"""
import json
import logging
import os
from collections import defaultdict
from inspect import signature
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import numpy as np
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from PIL import Image

from ..utils import UsageError
from ..utils.config import datasets, dicts
from .inference.images import BrokenImage, read_image

SAMPLE = 64
"""Most pictures of a data set to open."""
Entry = Dict[str, Any]


def check_annotations(cfg: Config, *loaders: str) -> None:
    """Checks the data sets of loaders as far as they are COCO's, label maps of the pictures' names, or class folders.

    Args:
        cfg: A whole config, whose files exist.
        *loaders: Names of the loaders that will be used.

    Raises:
        UsageError: If something is wrong; names the file and the entry.
    """
    if int(os.environ.get('LOCAL_RANK', 0)):
        return  # the first process says it
    checked = []
    folders = {}
    for key, dataset in datasets(cfg):
        loader = key.split('.')[0]
        backend = (dataset.get('backend_args') or {}).get('backend', 'local')
        if loader not in loaders or dataset in checked or backend != 'local':
            continue
        checked.append(dataset)
        with DATASETS.switch_scope_and_registry(cfg.default_scope) as registry:
            kind = dataset['type'] if isinstance(dataset['type'], type) else registry.get(dataset['type'])
        training = loader == 'train_dataloader'
        if cfg.default_scope == 'mmdet' and _loads_like(kind, 'mmdet.datasets', 'CocoDataset'):
            _check_coco(cfg, dataset, _classes(dataset, kind), training)
        elif cfg.default_scope == 'mmseg' and _loads_like(kind, 'mmseg.datasets', 'BaseSegDataset'):
            _check_label_maps(cfg, dataset, kind)
        elif cfg.default_scope == 'mmpretrain' and _loads_like(kind, 'mmpretrain.datasets', 'CustomDataset'):
            folders[loader] = _check_class_folders(cfg, dataset, kind) or folders.get(loader)
    _check_same_folders(list(filter(None, folders.values())))


def _loads_like(kind: Optional[type], module: str, name: str) -> bool:
    model = getattr(__import__(module, fromlist=[name]), name)
    return kind is not None and getattr(kind, 'load_data_list', None) is model.load_data_list


def _classes(dataset: Entry, kind: type) -> Sequence[str]:
    classes = (dataset.get('metainfo') or {}).get('classes') or getattr(kind, 'METAINFO', {}).get('classes') or ()
    return (classes, ) if isinstance(classes, str) else classes


def _setting(dataset: Entry, kind: type, name: str) -> Any:
    """A data set's argument, as given or by default."""
    if name in dataset:
        return dataset[name]
    defaults = (signature(one.__init__).parameters.get(name) for one in kind.__mro__)
    return next((default.default for default in defaults if default), None)


def _count_of(cfg: Config, heads: Sequence[str]) -> Iterable[int]:
    """``num_classes`` of a model's heads, of those in its ``roi_head`` too."""
    for model in filter(None, (cfg.model, cfg.model.get('roi_head'))):
        for head in filter(model.get, heads):
            yield from (part['num_classes'] for part in dicts(model[head]) if isinstance(part.get('num_classes'), int))


def _spread(sequence: Sequence) -> Sequence:
    """At most :data:`SAMPLE` of a sequence, from its start to its end."""
    return [sequence[i] for i in sorted({round(j) for j in np.linspace(0, len(sequence) - 1, SAMPLE)})] if sequence else []


def _tolerate(file: Path, first: str, count: int, total: int, consequence: str) -> None:
    """Warns of what is wrong in places, and refuses what is wrong as a rule."""
    said = f'{file}: {first}, and so it is with {count} of {total}; {consequence}'
    if 2 * count > total:
        raise UsageError(f'{said}, so little would be left to learn from: mend the file.')
    print_log(f'{said}.', logger='current', level=logging.WARNING)


def _sizes(cfg: Config, paths: Iterable[Path], file: Path) -> Iterable[Tuple[Path, Tuple[int, int]]]:
    """Opens pictures: paths, and heights and widths."""
    for path in paths:
        try:
            yield path, read_image(path).shape[:2]
        except BrokenImage as error:
            said = f'{path} of {file} cannot be read as a picture ({error}); replace it, or leave it out.'
            if not any(hook.get('skip_broken') for hook in dicts(cfg.get('custom_hooks'))):
                raise UsageError(said) from error
            print_log(said, logger='current', level=logging.WARNING)


# COCO


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and isfinite(value)


_IMAGE = dict(
    id=('a number or a name', lambda value: isinstance(value, (int, str))),
    file_name=('a name', lambda value: isinstance(value, str) and value),
    width=('a size in pixels', lambda value: _is_number(value) and value > 0),
    height=('a size in pixels', lambda value: _is_number(value) and value > 0))
_CATEGORY = dict(id=_IMAGE['id'], name=_IMAGE['file_name'])
_ANNOTATION = dict(
    id=_IMAGE['id'], image_id=_IMAGE['id'], category_id=_IMAGE['id'],
    bbox=('[x, y, width, height]', lambda value: isinstance(value, list) and len(value) == 4 and all(map(
        _is_number, value))),
    area=('a number of pixels', _is_number))


def _table(data: Any, name: str, file: Path, fields: Dict[str, tuple], optional: bool = False) -> List[Entry]:
    """The entries of a list in an annotation file, each with all that it needs, and their ids unique."""
    entries = data.get(name, [] if optional else None) if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise UsageError(f'{file} has no list of {name}; it is not an annotation file in the form of COCO.')
    ids: Set[Any] = set()
    for index, entry in enumerate(entries):
        for field, (meaning, fits) in fields.items():
            if not isinstance(entry, dict) or field not in entry:
                raise UsageError(f'{file}: {name}[{index}] has no {field}, which is {meaning}; add it.')
            if not fits(entry[field]):
                raise UsageError(f'{file}: {name}[{index}] has {field}={str(entry[field])[:80]}, which is not {meaning}; '
                                 'correct it.')
        if entry['id'] in ids:
            raise UsageError(f'{file}: {name}[{index}] has the id {entry["id"]}, as another has; number them anew.')
        ids.add(entry['id'])
    return entries


def _check_coco(cfg: Config, dataset: Entry, classes: Sequence[str], training: bool) -> None:
    root = dataset.get('data_root') or ''
    file = Path(root, dataset['ann_file'])
    try:
        data = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(f'{file} cannot be read as JSON ({error}); copy or make it again.') from error
    images = {one['id']: one for one in _table(data, 'images', file, _IMAGE)}
    categories = _table(data, 'categories', file, _CATEGORY)
    annotations = _table(data, 'annotations', file, _ANNOTATION, optional=not training)
    if not images:
        raise UsageError(f'{file} lists no images; there is nothing to work on.')
    _check_categories(cfg, file, categories, classes)
    wanted = {one['id'] for one in categories if one['name'] in classes}
    with_masks = any(part.get('with_mask') for part in dicts(dataset.get('pipeline')))
    _check_instances(file, images, annotations, {one['id'] for one in categories}, wanted, training, with_masks)
    folder = Path(root, (dataset.get('data_prefix') or {}).get('img') or '')
    _check_pictures(cfg, file, folder, list(images.values()))


def _check_categories(cfg: Config, file: Path, categories: List[Entry], classes: Sequence[str]) -> None:
    names = [one['name'] for one in categories]
    for name in classes:
        if names.count(name) != 1:
            raise UsageError(f'{file} has {names.count(name) or "no"} categories called {name!r}, which is a class of '
                             f"the config's data set (it has {', '.join(names[:9])}{', …' * (len(names) > 9)}); set "
                             'metainfo.classes to the names in the file.')
    if [name for name in names if name in classes] != list(classes):
        print_log(f'{file} has its categories in another order than the classes of the config, and mmdet goes by the '
                  "file's: names that are drawn will be wrong.", logger='current', level=logging.WARNING)
    for count in _count_of(cfg, ('bbox_head', 'mask_head')):
        if classes and count != len(classes):
            raise UsageError(f'The model has num_classes={count} in a head, and the data set of {file} {len(classes)} '
                             'classes; set both to the same.')


def _check_instances(file: Path, images: Dict[Any, Entry], annotations: List[Entry], known: Set[Any], wanted: Set[Any],
                     training: bool, with_masks: bool) -> None:
    dropped, strays, used = [], [], 0
    for index, one in enumerate(annotations):
        if one['category_id'] not in known:
            raise UsageError(f'{file}: annotations[{index}] has category_id={one["category_id"]}, which is none of the '
                             "file's categories; correct it.")
        image = images.get(one['image_id'])
        if image is None:
            strays.append(index)
            continue
        x, y, w, h = one['bbox']
        inside = min(x + w, image['width']) > max(x, 0) and min(y + h, image['height']) > max(y, 0)
        if not inside or one['area'] <= 0 or w < 1 or h < 1:
            dropped.append(index)
        elif one['category_id'] in wanted and not one.get('ignore'):
            used += 1
            if with_masks:
                _check_mask(f'{file}: annotations[{index}]', one.get('segmentation'), image)
    if strays:
        _tolerate(file, f'annotations[{strays[0]}] is of image {annotations[strays[0]]["image_id"]}, which is not in the '
                  'file', len(strays), len(annotations), 'the host leaves these out')
    if dropped:
        one = annotations[dropped[0]]
        image = images[one['image_id']]
        _tolerate(file, f'annotations[{dropped[0]}] has the box {one["bbox"]} and the area {one["area"]}, of no extent or '
                  f'outside the {image["width"]}×{image["height"]} pixels of {image["file_name"]}', len(dropped),
                  len(annotations), 'the host leaves these out')
    if training and not used:
        raise UsageError(f'{file} has no boxes of the classes to learn; check it, and metainfo.classes.')


def _check_mask(where: str, mask: Any, image: Entry) -> None:
    size = [image['height'], image['width']]
    if not mask or not isinstance(mask, (list, dict)):
        raise UsageError(f'{where} has no segmentation, which the pipeline asks for with with_mask=True; add it.')
    if isinstance(mask, dict) and mask.get('size') != size:
        raise UsageError(f'{where} has a mask of size {mask.get("size")} where its image has {size}; correct it.')
    if isinstance(mask, dict) and isinstance(mask.get('counts'), list) and sum(mask['counts']) != size[0] * size[1]:
        raise UsageError(f'{where} has a mask of {sum(mask["counts"])} pixels where its image has {size}; correct it.')
    if isinstance(mask, list) and not all(isinstance(one, list) and all(map(_is_number, one)) for one in mask):
        raise UsageError(f'{where} has a segmentation that is not made of lists of numbers; correct it.')


def _check_pictures(cfg: Config, file: Path, folder: Path, images: List[Entry]) -> None:
    """Whether all are there, and some have the size that the file says."""
    below = defaultdict(set)
    for path in (Path(folder, one['file_name']) for one in images):
        if path.parent not in below:
            below[path.parent] = set(os.listdir(path.parent)) if path.parent.is_dir() else set()
        if path.name not in below[path.parent]:
            raise UsageError(f'{path} is missing, which {file} lists; put it there, or leave it out.')
    wrong, sample = [], {Path(folder, one['file_name']): one for one in _spread(images)}
    for path, (height, width) in _sizes(cfg, sample, file):
        one = sample[path]
        if (height, width) != (one['height'], one['width']):
            wrong.append(f'{one["file_name"]} is {width}×{height} pixels large where the file says '
                         f'{one["width"]}×{one["height"]}')
    if wrong:
        _tolerate(file, wrong[0], len(wrong), len(sample), 'their boxes may be cut or lie elsewhere')


# Label maps


def _check_label_maps(cfg: Config, dataset: Entry, kind: type) -> None:
    root, prefix = dataset.get('data_root') or '', dataset.get('data_prefix') or {}
    folder, labels = Path(root, prefix.get('img_path') or ''), prefix.get('seg_map_path')
    suffix = _setting(dataset, kind, 'img_suffix')
    if dataset.get('ann_file') and Path(root, dataset['ann_file']).is_file():
        lines = Path(root, dataset['ann_file']).read_text().splitlines()
        names = [line.strip() + suffix for line in lines]
    else:
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob(f'*{suffix}'))
    if not names:
        raise UsageError(f'{folder} holds no pictures that end with {suffix}; set img_suffix, or check data_prefix.')
    if labels is None:
        return
    ending = _setting(dataset, kind, 'seg_map_suffix')
    maps = {name: Path(root, labels, name[:-len(suffix)] + ending) for name in names}
    for name, path in maps.items():
        if not path.is_file():
            raise UsageError(f'{path} is missing, the label map of {folder / name}; put it there, or leave out both.')
    whole = getattr(kind, 'METAINFO', {}).get('classes') or _classes(dataset, kind)
    zero = _setting(dataset, kind, 'reduce_zero_label') or any(
        part.get('reduce_zero_label') for part in dicts(dataset.get('pipeline')))
    count = len(whole) or min(_count_of(cfg, ('decode_head', )), default=255)
    heads = min(_count_of(cfg, ('decode_head', 'auxiliary_head')), default=count)
    if heads < len(_classes(dataset, kind)):
        raise UsageError(f'The model has num_classes={heads} in a head, and the data set of {folder} '
                         f'{len(_classes(dataset, kind))} classes; set both to the same.')
    ignored = {255, *(part.get('ignore_index', 255) for part in dicts(cfg.model))}
    for path, size in _sizes(cfg, [folder / name for name in _spread(names)], folder):
        _check_label_map(maps[str(path.relative_to(folder))], size, count + bool(zero), ignored)


def _check_label_map(path: Path, shape: tuple, count: int, ignored: Set[int]) -> None:
    try:
        with Image.open(path) as picture:
            values = np.asarray(picture)
    except Exception as error:  # every decoder has errors of its own
        raise UsageError(f'{path} cannot be read as a label map ({error}); replace it.') from error
    if values.ndim != 2:
        raise UsageError(f'{path} is a picture in colours, where a label map has one number for each pixel; convert it.')
    if values.shape != shape:
        raise UsageError(f'{path} is {values.shape[1]}×{values.shape[0]} pixels large where its picture is '
                         f'{shape[1]}×{shape[0]}; make it again.')
    strange = sorted(set(np.unique(values).tolist()) - set(range(count)) - ignored)
    if strange:
        raise UsageError(f'{path} has the label {strange[0]}, where the classes end at {count - 1} and '
                         f'{min(ignored)} is left out; correct it, or metainfo.classes and reduce_zero_label.')


# Class folders


def _check_class_folders(cfg: Config, dataset: Entry, kind: type) -> Optional[tuple]:
    """The folder of a data set and the names of those in it, None if it goes by an annotation file."""
    if dataset.get('ann_file') or _setting(dataset, kind, 'with_label') is False:
        return None
    prefix = dataset.get('data_prefix') or ''
    prefix = prefix.get('img_path', '') if isinstance(prefix, dict) else prefix
    split = dataset.get('split') or ''
    folder = Path(dataset.get('data_root') or '', prefix or split)
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    classes = (dataset.get('metainfo') or {}).get('classes') or dataset.get('classes') or ()
    if classes and not isinstance(classes, str) and len(classes) != len(names):
        raise UsageError(f'{folder} has {len(names)} class folders, and the config {len(classes)} classes; make them '
                         'the same.')
    for count in _count_of(cfg, ('head', )):
        if len(names) > count:
            raise UsageError(f'{folder} has {len(names)} class folders (the last is {names[-1]}), and the model '
                             f'num_classes={count}; set model.head.num_classes.')
    endings = tuple(_setting(dataset, kind, 'extensions') or ())
    pictures = [path for name in names for path in sorted((folder / name).rglob('*'))
                if path.name.lower().endswith(endings) and not path.is_dir()]
    if not pictures:
        raise UsageError(f'{folder} has no class folders with pictures ({", ".join(endings)}); check data_prefix.')
    for _ in _sizes(cfg, _spread(pictures), folder):
        pass
    return folder, names


def _check_same_folders(found: List[tuple]) -> None:
    """Labels are numbers of folders in their order, so other folders are other labels."""
    for folder, names in found[1:]:
        first, expected = found[0]
        if names != expected:
            odd = sorted(set(names) ^ set(expected))[0]
            raise UsageError(f'{first} and {folder} have different class folders ({odd} is in one alone), so the same '
                             'class would have two labels; make them the same.')
