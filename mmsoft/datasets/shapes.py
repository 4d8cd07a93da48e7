"""The shapes data set: generated, the same everywhere, and enough to make any configuration run.

``python -m mmsoft.datasets.shapes --help`` writes it by hand; the tools call :func:`ensure_shapes` when they need it.
The folder's layout is described in :mod:`mmsoft.datasets.shapes_formats`.
"""
import argparse
import inspect
import json
import re
import sys
import time
import zlib
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from filelock import FileLock
from mmengine.logging import print_log

from ..apis.cli import command_line
from ..utils import UsageError
from ..utils.files import atomic_write
from . import shapes_formats as formats
from .shapes_scene import OUTLINES, TEXTURES, draw_portrait, draw_scene

CLASSES = tuple(OUTLINES)
STUFF = tuple(TEXTURES)
PALETTE = [(220, 20, 60), (255, 200, 0), (0, 160, 90), (0, 190, 220), (0, 90, 230), (230, 70, 200)]
STUFF_PALETTE = [(196, 206, 224), (150, 120, 100), (90, 100, 110), (190, 200, 150)]

METAINFO = dict(classes=CLASSES, palette=PALETTE)
"""Of the COCO and the ImageFolder form."""
SEMANTIC_METAINFO = dict(classes=CLASSES + STUFF, palette=PALETTE + STUFF_PALETTE)
"""Of the ADE20K form, whose label 0 is clutter and is left out by ``reduce_zero_label=True``."""

DEFAULT_ROOT = 'data/shapes'
_VERSION = 4  # to be raised whenever the same parameters give other files
_MANIFEST = 'shapes.json'
_MARK = '{"generator": "mmsoft.datasets.shapes", '  # how a manifest begins
_LOCK = '.lock'
_LEFT = r'\.lock|\.shapes\.json\.\w+\.partial'  # what there is before there is a manifest


class Parameters(NamedTuple):
    """What decides the data set's content.

    Attributes:
        train: Number of scenes to train on.
        val: Number of scenes held out.
        portraits: Number of pictures of a single object to train on; a quarter of that is held out.
        size: Longer side of a scene in pixels; the shorter one is as long, or three quarters of it.
        portrait_size: Side of a single object's picture in pixels.
        seed: Another number gives other pictures.
    """

    train: int = 1800
    val: int = 200
    portraits: int = 480
    size: int = 128
    portrait_size: int = 96
    seed: int = 0


LEAST = Parameters(train=1, val=1, portraits=4 * len(CLASSES), size=64, portrait_size=32, seed=0)


def ensure_shapes(root: Union[str, Path] = DEFAULT_ROOT, **parameters: int) -> Path:
    """Makes sure that the data set is on disk, whole and undamaged.

    Nothing is written if it is. Otherwise it is generated anew, the same to the last bit, in some ten seconds. Several
    processes may call this at once; one of them writes and the others wait.

    Args:
        root: Folder to hold the data set. It must be absent, empty, or have been written by this function.
        **parameters: Of :class:`Parameters`. What is not given is as it was when the folder was written, or else as
            :class:`Parameters` has it.

    Returns:
        The root.

    Raises:
        UsageError: If the root holds something else or cannot be written, or if a parameter is too small.
    """
    root = Path(root)
    for name, value in parameters.items():
        if value < getattr(LEAST, name):
            raise UsageError(f'{name}={value} makes no data set; give {getattr(LEAST, name)} or more.')
    try:
        if _is_intact(root, _read_manifest(root), parameters):
            print_log(f'The shapes in {root} are intact.', logger='current')
            return root
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / _LOCK):
            manifest = _read_manifest(root)
            if not _is_intact(root, manifest, parameters):  # another process may have been faster
                _write(root, manifest, parameters)
    except OSError as error:
        raise UsageError(f'The shapes cannot be written to {root} ({error.strerror or error}); make room there, or run '
                         'in a folder that you may write to.') from error
    return root


def shapes_dataset(scope: str, root: str, split: str) -> Dict[str, Any]:
    """The config of a split, ``'train'`` or ``'val'``, in the form that a host reads."""
    files = dict(
        mmdet=dict(
            type='CocoDataset', ann_file=formats.INSTANCES[split], data_prefix=dict(img=formats.IMAGES[split])),
        mmseg=dict(
            type='BaseSegDataset', reduce_zero_label=True,
            data_prefix=dict(img_path=formats.IMAGES[split], seg_map_path=formats.LABELS[split])),
        mmpretrain=dict(type='CustomDataset', data_prefix=formats.PORTRAITS[split]))[scope]
    return dict(files, data_root=root, metainfo=SEMANTIC_METAINFO if scope == 'mmseg' else METAINFO)


def generate(parameters: Parameters) -> Iterator[Tuple[str, bytes]]:
    """Generates the data set's files.

    Every picture has its own random generator, so none depends on the others or on how many there are.

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
            documents = []
            for index, drawn in enumerate(pool.imap(partial(scene, stream), range(count))):
                documents.append(formats.coco_scene(f'{index:06d}.jpg', drawn))
                yield f'{formats.IMAGES[split]}/{index:06d}.jpg', formats.jpeg(drawn.image)
                yield f'{formats.LABELS[split]}/{index:06d}.png', formats.png(drawn.semantic)
            yield formats.INSTANCES[split], formats.coco_document(documents, CLASSES)
        portraits = dict(train=parameters.portraits, val=parameters.portraits // 4)
        for stream, (split, count) in enumerate(portraits.items(), start=2):
            for index, drawn in enumerate(pool.imap(partial(portrait, stream), range(count))):
                name = CLASSES[index % len(CLASSES)]
                yield f'{formats.PORTRAITS[split]}/{name}/{index:06d}.jpg', formats.jpeg(drawn.image)


def _read_manifest(root: Path) -> Dict[str, Any]:
    """What the folder is meant to hold: the generator's version, its parameters, and the checksum of every file.

    Raises:
        UsageError: If the folder is neither absent nor empty nor ours.
    """
    nothing = dict(version=_VERSION, parameters={}, files={})
    if not root.exists() or root.is_dir() and all(re.fullmatch(_LEFT, path.name) for path in root.iterdir()):
        return nothing
    path = root / _MANIFEST
    text = path.read_text(errors='replace') if path.is_file() else None
    if text is None or not text.startswith(_MARK[:len(text)]):
        raise UsageError(f'{root} holds something other than the generated shapes and is left alone; move it away, or '
                         'run in another folder.')
    try:
        content = json.loads(text)
        return {key: content[key] for key in nothing}
    except (ValueError, KeyError):
        return nothing


def _is_intact(root: Path, manifest: Dict[str, Any], parameters: Dict[str, int]) -> bool:
    if not manifest['files'] or manifest['version'] != _VERSION:
        return False
    if not parameters.items() <= manifest['parameters'].items():
        return False
    try:
        return all(zlib.crc32((root / path).read_bytes()) == checksum for path, checksum in manifest['files'].items())
    except OSError:
        return False


def _write(root: Path, manifest: Dict[str, Any], parameters: Dict[str, int]) -> None:
    """Replaces the files of the manifest, and touches no other."""
    started = time.time()
    for path in root.glob('.*.partial'):
        path.unlink()
    chosen = Parameters(**{**manifest['parameters'], **parameters})
    files = dict(generate(chosen))
    for path in manifest['files'].keys() - files.keys():
        (root / path).unlink(missing_ok=True)
    checksums = {path: zlib.crc32(content) for path, content in files.items()}
    content = json.dumps(dict(version=_VERSION, parameters=chosen._asdict(), files=checksums))
    with atomic_write(root / _MANIFEST) as file:  # first: what an interruption leaves is recognised as incomplete
        file.write((_MARK + content[1:]).encode())
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    print_log(
        f'{"Repaired" if manifest["files"] else "Wrote"} the shapes in {root}: {chosen.train} scenes to train on, '
        f'{chosen.val} held out, {time.time() - started:.0f} s.',
        logger='current')


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog='python -m mmsoft.datasets.shapes',
        description='Writes the shapes data set. ' + inspect.cleandoc(Parameters.__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--root', default=DEFAULT_ROOT, help='folder to hold it (default: %(default)s)')
    for name, default in Parameters()._asdict().items():
        option = '--' + name.replace('_', '-')
        parser.add_argument(option, type=int, default=argparse.SUPPRESS, help=f'default: {default}')
    options = vars(parser.parse_args(arguments))
    return command_line(lambda: ensure_shapes(**options))


if __name__ == '__main__':
    sys.exit(main())
