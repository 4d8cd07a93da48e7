"""The synthetic shapes data set: the same on every machine, and enough to train every config of this repository.

``python -m mmsoft.datasets.shapes`` writes it to ``data/shapes``; the tools call :func:`ensure_shapes` when they need
it. Images are stored once; the COCO and the ADE20K form share them::

    images/{training,validation}/000000.jpg
    annotations/{train,val}.json                   COCO
    annotations/{training,validation}/000000.png   ADE20K
    imagenet/{train,val}/CLASS/000000.jpg          ImageFolder
"""
import json
from argparse import SUPPRESS, ArgumentParser
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ..utils import UsageError
from .generated import add_to_coco, coco_document, ensure, jpeg, png, read_version
from .shapes_scene import OUTLINES, TEXTURES, draw_portrait, draw_scene

CLASSES = tuple(OUTLINES)
STUFF = tuple(TEXTURES)
PALETTE = [(220, 20, 60), (255, 200, 0), (0, 160, 90), (0, 190, 220), (0, 90, 230), (230, 70, 200)]
STUFF_PALETTE = [(196, 206, 224), (150, 120, 100), (90, 100, 110), (190, 200, 150)]
METAINFO = dict(classes=CLASSES, palette=PALETTE)
"""Of the COCO and the ImageFolder form."""
SEMANTIC_METAINFO = dict(classes=CLASSES + STUFF, palette=PALETTE + STUFF_PALETTE)
"""Of the ADE20K form, whose label 0 is clutter and is left out by ``reduce_zero_label=True``."""

# Where the files of a split are below the root.
IMAGES = dict(train='images/training', val='images/validation')
INSTANCES = dict(train='annotations/train.json', val='annotations/val.json')
LABELS = dict(train='annotations/training', val='annotations/validation')
PORTRAITS = dict(train='imagenet/train', val='imagenet/val')
DEFAULT_ROOT = 'data/shapes'
_VERSION = 5  # to be raised whenever the same parameters give other files


class Parameters(NamedTuple):
    """What decides the data set's content.

    Attributes:
        train: Number of scenes to train on.
        val: Number of scenes held out.
        portraits: Number of images of a single object to train on; a quarter of that is held out.
        size: Longer side of a scene in pixels; the shorter one is as long, or three quarters of it.
        portrait_size: Side of a single object's image in pixels.
        seed: Another number gives other images.
    """

    train: int = 1800
    val: int = 200
    portraits: int = 480
    size: int = 128
    portrait_size: int = 96
    seed: int = 0


MINIMUM = Parameters(train=1, val=1, portraits=4 * len(CLASSES), size=64, portrait_size=32, seed=0)


def ensure_shapes(root: Union[str, Path] = DEFAULT_ROOT, **parameters: int) -> Path:
    """Makes sure that the data set is on disk; to generate it takes some ten seconds.

    Args:
        root: Folder to hold the data set, see :func:`~mmsoft.datasets.generated.ensure`.
        **parameters: Of :class:`Parameters`. What is not given is as it was when the folder was written, or else as
            :class:`Parameters` has it.

    Returns:
        The root.

    Raises:
        UsageError: If the root holds something else or cannot be written, or if a parameter is too small.
    """
    for name, value in parameters.items():
        if value < getattr(MINIMUM, name):
            raise UsageError(f'{name}={value} makes no data set; give {getattr(MINIMUM, name)} or more.')
    chosen = Parameters(**{**read_version(root, 'shapes').get('parameters', {}), **parameters})
    return ensure(root, 'shapes', dict(version=_VERSION, parameters=chosen._asdict()), partial(generate, chosen))


def generate(parameters: Parameters) -> Iterator[Tuple[str, bytes]]:
    """Generates the data set's files.

    Every image has its own random generator, so none depends on the others or on how many there are.

    Yields:
        Pairs of a path below the root and the content.
    """
    short = parameters.size * 3 // 4
    sides = [(parameters.size, parameters.size), (parameters.size, short), (short, parameters.size)]

    def scene(stream, index):
        return draw_scene(np.random.default_rng([parameters.seed, stream, index]), *sides[index % 3])

    def portrait(stream, index):
        rng = np.random.default_rng([parameters.seed, stream, index])
        return draw_portrait(rng, parameters.portrait_size, index % len(CLASSES))

    # Threads suffice, because NumPy and OpenCV do most of their work without the interpreter's lock.
    with ThreadPool() as pool:
        for stream, (split, count) in enumerate(dict(train=parameters.train, val=parameters.val).items()):
            document = coco_document(CLASSES)
            for index, drawn in enumerate(pool.imap(partial(scene, stream), range(count))):
                add_to_coco(document, f'{index:06d}.jpg', drawn.semantic.shape, drawn.instances)
                yield f'{IMAGES[split]}/{index:06d}.jpg', jpeg(drawn.image)
                yield f'{LABELS[split]}/{index:06d}.png', png(drawn.semantic)
            yield INSTANCES[split], json.dumps(document, separators=(',', ':')).encode()
        portraits = dict(train=parameters.portraits, val=parameters.portraits // 4)
        for stream, (split, count) in enumerate(portraits.items(), start=2):
            for index, drawn in enumerate(pool.imap(partial(portrait, stream), range(count))):
                yield f'{PORTRAITS[split]}/{CLASSES[index % len(CLASSES)]}/{index:06d}.jpg', jpeg(drawn.image)


def shapes_dataset(scope: str, root: str, split: str) -> Dict[str, Any]:
    """The config of a split, ``'train'`` or ``'val'``, in the form that an OpenMMLab library reads."""
    files = dict(
        mmdet=dict(type='CocoDataset', ann_file=INSTANCES[split], data_prefix=dict(img=IMAGES[split])),
        mmseg=dict(
            type='BaseSegDataset', reduce_zero_label=True,
            data_prefix=dict(img_path=IMAGES[split], seg_map_path=LABELS[split])),
        mmpretrain=dict(type='CustomDataset', data_prefix=PORTRAITS[split]))[scope]
    return dict(files, data_root=root, metainfo=SEMANTIC_METAINFO if scope == 'mmseg' else METAINFO)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """The command line. There is no option for the folder, because the tools look in ``data/shapes`` alone."""
    parser = ArgumentParser('python -m mmsoft.datasets.shapes', description=f'Writes {DEFAULT_ROOT}.')
    for name, default in Parameters()._asdict().items():
        parser.add_argument('--' + name.replace('_', '-'), type=int, default=SUPPRESS, help=f'default: {default}')
    options = vars(parser.parse_args(arguments))
    try:
        ensure_shapes(**options)
    except UsageError as error:
        parser.error(str(error))


if __name__ == '__main__':
    main()
