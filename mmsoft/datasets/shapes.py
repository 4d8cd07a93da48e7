"""The synthetic shapes data set: the same on every machine, and enough to train every config of this repository.

The tools call :func:`ensure_shapes` when they need it; docs/data.md shows its files. Scenes under a sky have twelve
classes, each outline by day and by night: only the sky at the upper border tells which of the two it is.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union

import cv2
import numpy as np
from filelock import FileLock
from mmengine.logging import print_log

from mmsoft.utils import UsageError

from .shapes_scene import OUTLINES, SKIES, TEXTURES, Scene, draw_portrait, draw_scene, draw_sky_scene

CLASSES, STUFF = tuple(OUTLINES), tuple(TEXTURES)
PALETTE = [(220, 20, 60), (255, 200, 0), (0, 160, 90), (0, 190, 220), (0, 90, 230), (230, 70, 200)]
STUFF_PALETTE = [(196, 206, 224), (150, 120, 100), (90, 100, 110), (190, 200, 150)]
# Metainfo in COCO's form, and in ADE20K's, where reduce_zero_label=True leaves out label 0 (clutter).
METAINFO = dict(classes=CLASSES, palette=PALETTE)
SEMANTIC_METAINFO = dict(classes=CLASSES + STUFF, palette=PALETTE + STUFF_PALETTE)
SKY_METAINFO = dict(
    classes=tuple(f'{kind} {name}' for kind in SKIES for name in OUTLINES),
    palette=PALETTE + [tuple(channel // 2 for channel in colour) for colour in PALETTE],
)

IMAGES = dict(train='images/training', val='images/validation')  # all below the root
INSTANCES = dict(train='annotations/train.json', val='annotations/val.json')
LABELS = dict(train='annotations/training', val='annotations/validation')
PORTRAITS = dict(train='imagenet/train', val='imagenet/val')
DEFAULT_ROOT = 'data/shapes'
_VERSION = 6  # to be raised whenever the same parameters give other files


class Parameters(NamedTuple):
    """Parameters of the data set's content; sizes are in pixels."""

    train: int = 1800  #: Scenes to train on.
    val: int = 200  #: Scenes held out.
    portraits: int = 480  #: Images of a single object to train on; a quarter of that is held out.
    size: int = 128  #: Longer side of a scene; the shorter one is as long, or three quarters of it.
    portrait_size: int = 96
    seed: int = 0


def ensure_shapes(root: Union[str, Path] = DEFAULT_ROOT, **parameters: int) -> Path:
    """Writes the data set to a folder unless it is there, which takes up to a minute; returns the folder.

    A folder of another version is replaced once the new one is complete. Of several processes, one writes and others
    wait. ``parameters`` are of :class:`Parameters`; others stay as written. UsageError if the folder has other data.
    """
    folder = Path(root).resolve()
    written = _version(folder)
    chosen = Parameters(**{**(written['parameters'] if written.get('version') == _VERSION else {}), **parameters})
    if written != (version := dict(version=_VERSION, parameters=chosen._asdict())):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f'.{folder.name}.lock')):
            if _version(folder) != version:  # or else another process was faster
                print_log(f'Writing the synthetic shapes data set to {root}.', logger='current')
                _replace(folder, [*generate(chosen), ('shapes.json', json.dumps(version).encode())])
    return Path(root)


def _version(root: Path) -> dict[str, Any]:
    """Version and parameters that a folder was written with; empty if it is absent, empty, or does not say."""
    note = root / 'shapes.json'
    if not note.exists() and root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UsageError(f'{root} is not the synthetic shapes data set and is left alone; move it, or run elsewhere.')
    try:
        return dict(json.loads(note.read_text())) if note.exists() else {}
    except (TypeError, ValueError):
        return {}


def _replace(folder: Path, files: list) -> None:
    """Replaces a folder once all ``files`` are written, which are pairs of a relative path and the content."""
    spare = folder.with_name(f'.{folder.name}.new')
    new, old = spare / 'new', spare / 'old'
    shutil.rmtree(spare, ignore_errors=True)  # what a killed process left
    try:
        for path, content in files:
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            (new / path).write_bytes(content)
        if folder.exists():
            folder.replace(old)  # which fails before anything is lost if the folder is a mount point
        new.replace(folder)
    finally:
        shutil.rmtree(spare, ignore_errors=True)


def generate(parameters: Parameters) -> Iterator[tuple[str, bytes]]:
    """Yields relative paths and contents of files. Each image has its own random generator, independent of others."""
    size, short = parameters.size, parameters.size * 3 // 4

    def generator(stream: int, index: int) -> np.random.Generator:
        return np.random.default_rng([parameters.seed, stream, index])

    def encoded(image: np.ndarray) -> bytes:
        return cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()

    for stream, split in enumerate(IMAGES):
        scenes, sky_scenes = empty_coco(CLASSES), empty_coco(SKY_METAINFO['classes'])
        for index in range(getattr(parameters, split)):
            name, sides = f'{index:06d}', [(size, size), (size, short), (short, size)][index % 3]
            scene = draw_scene(generator(stream, index), *sides)
            add_scene(scenes, f'{name}.jpg', scene)
            yield f'{IMAGES[split]}/{name}.jpg', encoded(scene.image)
            yield f'{LABELS[split]}/{name}.png', cv2.imencode('.png', scene.semantic)[1].tobytes()
            scene = draw_sky_scene(generator(4 + stream, index), *sides)
            add_scene(sky_scenes, f'{name}.jpg', scene)
            yield f'sky/{split}/{name}.jpg', encoded(scene.image)
        for index in range(parameters.portraits // (1 + 3 * stream)):
            label = index % len(CLASSES)
            portrait = draw_portrait(generator(2 + stream, index), parameters.portrait_size, label)
            yield f'{PORTRAITS[split]}/{CLASSES[label]}/{index:06d}.jpg', encoded(portrait.image)
        for path, coco in ((INSTANCES[split], scenes), (f'sky/{split}.json', sky_scenes)):
            yield path, json.dumps(coco, separators=(',', ':')).encode()


def empty_coco(classes: Sequence[str]) -> dict[str, Any]:
    """The content of a COCO annotation file without images."""
    categories = [dict(id=number, name=name, supercategory='shape') for number, name in enumerate(classes, start=1)]
    return dict(info={}, licenses=[], images=[], annotations=[], categories=categories)


def add_scene(coco: dict[str, Any], file_name: str, scene: Scene) -> None:
    """Adds a scene and its objects to a COCO annotation file, in which all ids count from 1."""
    image_id, (height, width) = len(coco['images']) + 1, scene.semantic.shape
    coco['images'].append(dict(file_name=file_name, height=height, width=width, id=image_id))
    for label, mask, crowd in scene.instances:
        box = list(cv2.boundingRect(mask.view(np.uint8)))
        annotation = dict(category_id=label + 1, iscrowd=int(crowd), area=int(mask.sum()), bbox=box)
        annotation.update(segmentation=run_lengths(mask), image_id=image_id, id=len(coco['annotations']) + 1)
        coco['annotations'].append(annotation)


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """A mask, (H, W) bool, as COCO's uncompressed run lengths, which run down the columns and start with zeros."""
    flat = np.concatenate([[0], mask.ravel(order='F'), [1 - mask[-1, -1]]])
    return dict(size=list(mask.shape), counts=np.diff(np.flatnonzero(np.diff(flat)), prepend=0).tolist())


def shapes_dataset(scope: str, root: str, split: str) -> dict[str, Any]:
    """The config of a split, ``'train'`` or ``'val'``, in the form that an OpenMMLab library reads."""
    if scope == 'mmdet':
        files = dict(ann_file=INSTANCES[split], data_prefix=dict(img=IMAGES[split]))
        return dict(files, type='CocoDataset', data_root=root, metainfo=METAINFO, filter_cfg=dict(filter_empty_gt=True))
    if scope == 'mmseg':
        files = dict(data_prefix=dict(img_path=IMAGES[split], seg_map_path=LABELS[split]), reduce_zero_label=True)
        return dict(files, type='BaseSegDataset', data_root=root, metainfo=SEMANTIC_METAINFO)
    metainfo = dict(classes=sorted(CLASSES))  # as mmpretrain counts folders
    return dict(type='CustomDataset', data_root=root, data_prefix=PORTRAITS[split], metainfo=metainfo)
