"""The synthetic shapes data set: the same on every machine, and enough to train every config of this repository.

The tools call :func:`ensure_shapes` when they need it. Images are stored once: the COCO and ADE20K forms share them::

    images/{training,validation}/000000.jpg
    annotations/{train,val}.json                   COCO
    annotations/{training,validation}/000000.png   ADE20K
    imagenet/{train,val}/CLASS/000000.jpg          ImageFolder
    sky/{train,val}/000000.jpg, sky/{train,val}.json   COCO, in scenes under a sky

Under a sky there are twelve classes, each outline by day and by night: no object shows which of the two it is, the sky
at the upper border does. It takes attention, or convolutions that reach as far, to tell them apart.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple, Union

import cv2
import numpy as np
from filelock import FileLock
from mmengine.logging import print_log

from ..utils import UsageError
from .shapes_scene import OUTLINES, SKIES, TEXTURES, Scene, draw_portrait, draw_scene, draw_sky_scene

CLASSES = tuple(OUTLINES)
STUFF = tuple(TEXTURES)
PALETTE = [(220, 20, 60), (255, 200, 0), (0, 160, 90), (0, 190, 220), (0, 90, 230), (230, 70, 200)]
STUFF_PALETTE = [(196, 206, 224), (150, 120, 100), (90, 100, 110), (190, 200, 150)]
METAINFO = dict(classes=CLASSES, palette=PALETTE)
"""Of the COCO and the ImageFolder form."""
SEMANTIC_METAINFO = dict(classes=CLASSES + STUFF, palette=PALETTE + STUFF_PALETTE)
"""Of the ADE20K form, whose label 0 is clutter and is left out by ``reduce_zero_label=True``."""

SKY_METAINFO = dict(
    classes=tuple(f'{kind} {name}' for kind in SKIES for name in OUTLINES),
    palette=PALETTE + [tuple(channel // 2 for channel in colour) for colour in PALETTE],
)
"""Of the COCO form of scenes under a sky."""

# Where the files of a split are below the root.
IMAGES = dict(train='images/training', val='images/validation')
INSTANCES = dict(train='annotations/train.json', val='annotations/val.json')
LABELS = dict(train='annotations/training', val='annotations/validation')
PORTRAITS = dict(train='imagenet/train', val='imagenet/val')
DEFAULT_ROOT = 'data/shapes'
_VERSION = 6  # to be raised whenever the same parameters give other files


class Parameters(NamedTuple):
    """What decides the data set's content; sizes are in pixels."""

    train: int = 1800  # scenes to train on
    val: int = 200  # scenes held out
    portraits: int = 480  # images of a single object to train on; a quarter of that is held out
    size: int = 128  # longer side of a scene; the shorter one is as long, or three quarters of it
    portrait_size: int = 96
    seed: int = 0


def ensure_shapes(root: Union[str, Path] = DEFAULT_ROOT, **parameters: int) -> Path:
    """Makes sure that the data set is on disk, which takes some ten seconds the first time.

    A folder of another version is replaced. The new one takes its name once it is whole. Of several processes that call
    this at once, one writes and the others wait.

    Args:
        root: Folder to hold the data set. It must be absent, empty, or have been written by this function.
        **parameters: Of :class:`Parameters`. What is not given is as it was when the folder was written, or else as
            :class:`Parameters` has it.

    Returns:
        The root.

    Raises:
        UsageError: If the root holds something else or cannot be written.
    """
    final = Path(root).resolve()
    try:
        written = _version(final)
        chosen = Parameters(**{**written.get('parameters', {}), **parameters})
        version = dict(version=_VERSION, parameters=chosen._asdict())
        if written == version:
            return Path(root)
        final.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(final.with_name(f'.{final.name}.lock')):
            if _version(final) != version:  # or else another process was faster
                print_log(f'Writing the synthetic shapes data set to {root}.', logger='current')
                _replace(final, [*generate(chosen), ('shapes.json', json.dumps(version).encode())])
    except OSError as error:
        raise UsageError(
            f'The synthetic shapes data set cannot be written to {root} ({error.strerror or error}); make '
            'room there, or run in a folder that you may write to.'
        ) from error
    return Path(root)


def _version(root: Path) -> dict[str, Any]:
    """What a folder was written from; empty if it is absent, empty, or does not say."""
    path = root / 'shapes.json'
    if not path.is_file() and root.exists() and not (root.is_dir() and not any(root.iterdir())):
        raise UsageError(
            f'{root} holds something other than the synthetic shapes data set and is left alone; move it '
            'away, or run in another folder.'
        )
    try:
        return dict(json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def _replace(folder: Path, files: list) -> None:
    """Replaces a folder by one of the given files, pairs of a path below it and the content, once all are written."""
    new = folder.with_name(f'.{folder.name}.new')
    shutil.rmtree(new, ignore_errors=True)  # what a killed process left
    try:
        for path, content in files:
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            (new / path).write_bytes(content)
        shutil.rmtree(folder, ignore_errors=True)
        new.replace(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def generate(parameters: Parameters) -> Iterator[tuple[str, bytes]]:
    """Generates the data set's files.

    Every image has its own random generator, so none depends on the others or on how many there are.

    Yields:
        Pairs of a path below the root and the content.
    """
    size, short = parameters.size, parameters.size * 3 // 4
    sides = [(size, size), (size, short), (short, size)]

    def scene(stream: int, index: int) -> Scene:
        return draw_scene(np.random.default_rng([parameters.seed, stream, index]), *sides[index % 3])

    def portrait(stream: int, index: int) -> Scene:
        rng = np.random.default_rng([parameters.seed, stream, index])
        return draw_portrait(rng, parameters.portrait_size, index % len(CLASSES))

    def sky_scene(stream, index):
        rng = np.random.default_rng([parameters.seed, stream, index])
        night = int(rng.integers(len(SKIES)))
        drawn = draw_sky_scene(rng, *sides[index % 3], list(SKIES)[night])
        named = [one._replace(label=one.label + night * len(CLASSES)) for one in drawn.instances]
        return drawn._replace(instances=named)

    # Threads suffice, because NumPy and OpenCV do most of their work without the interpreter's lock.
    with ThreadPool() as pool:
        for stream, (split, count) in enumerate(dict(train=parameters.train, val=parameters.val).items()):
            written = []
            for index, drawn in enumerate(pool.imap(partial(scene, stream), range(count))):
                written.append(_described(f'{index:06d}.jpg', drawn))
                yield f'{IMAGES[split]}/{index:06d}.jpg', _jpeg(drawn.image)
                yield f'{LABELS[split]}/{index:06d}.png', cv2.imencode('.png', drawn.semantic)[1].tobytes()
            yield INSTANCES[split], _coco(written, CLASSES)
        for stream, (split, count) in enumerate(dict(train=parameters.train, val=parameters.val).items(), start=4):
            written = []
            for index, drawn in enumerate(pool.imap(partial(sky_scene, stream), range(count))):
                written.append(_described(f'{index:06d}.jpg', drawn))
                yield f'sky/{split}/{index:06d}.jpg', _jpeg(drawn.image)
            yield f'sky/{split}.json', _coco(written, SKY_METAINFO['classes'])
        portraits = dict(train=parameters.portraits, val=parameters.portraits // 4)
        for stream, (split, count) in enumerate(portraits.items(), start=2):
            for index, drawn in enumerate(pool.imap(partial(portrait, stream), range(count))):
                yield f'{PORTRAITS[split]}/{CLASSES[index % len(CLASSES)]}/{index:06d}.jpg', _jpeg(drawn.image)


def _jpeg(image: np.ndarray) -> bytes:
    return cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()


def _described(file_name: str, scene: Scene) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A scene and its objects as COCO has them, without ids."""
    height, width = scene.semantic.shape
    objects = [
        dict(
            category_id=label + 1,
            iscrowd=int(crowd),
            area=int(mask.sum()),
            bbox=list(cv2.boundingRect(mask.view(np.uint8))),
            segmentation=run_lengths(mask),
        )
        for label, mask, crowd in scene.instances
    ]
    return dict(file_name=file_name, height=height, width=width), objects


def _coco(scenes: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]], classes: Sequence[str]) -> bytes:
    """A COCO annotation file of scenes from :func:`_described`; all ids count from 1."""
    images = [dict(image, id=number) for number, (image, _) in enumerate(scenes, start=1)]
    objects = [dict(one, image_id=image['id']) for image, (_, found) in zip(images, scenes) for one in found]
    annotations = [dict(one, id=number) for number, one in enumerate(objects, start=1)]
    categories = [dict(id=number, name=name, supercategory='shape') for number, name in enumerate(classes, start=1)]
    coco = dict(info={}, licenses=[], images=images, annotations=annotations, categories=categories)
    return json.dumps(coco, separators=(',', ':')).encode()


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """A mask, (H, W) bool, as COCO's uncompressed run lengths, which run down the columns and start with zeros."""
    flat = np.concatenate([[0], mask.ravel(order='F'), [1 - mask[-1, -1]]])
    counts = np.diff(np.flatnonzero(np.diff(flat)), prepend=0).tolist()
    return dict(size=list(mask.shape), counts=counts)


def shapes_dataset(scope: str, root: str, split: str) -> dict[str, Any]:
    """The config of a split, ``'train'`` or ``'val'``, in the form that an OpenMMLab library reads."""
    files = dict(
        mmdet=dict(type='CocoDataset', ann_file=INSTANCES[split], data_prefix=dict(img=IMAGES[split])),
        mmseg=dict(
            type='BaseSegDataset',
            reduce_zero_label=True,
            data_prefix=dict(img_path=IMAGES[split], seg_map_path=LABELS[split]),
        ),
        mmpretrain=dict(type='CustomDataset', data_prefix=PORTRAITS[split]),
    )[scope]
    return dict(files, data_root=root, metainfo=SEMANTIC_METAINFO if scope == 'mmseg' else METAINFO)
