"""Generated data sets on disk: written once, whole, and read by the OpenMMLab libraries' own loaders."""
import json
import os
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Tuple, Union

import cv2
import numpy as np
from filelock import FileLock
from mmengine.logging import print_log

from ..utils import UsageError


def read_version(root: Union[str, Path], name: str) -> Dict[str, Any]:
    """What :func:`ensure` wrote a folder from; empty if it is absent, empty or was written in part.

    Raises:
        UsageError: If the folder holds something else.
    """
    path = Path(root, f'{name}.json')
    if not path.is_file():
        if Path(root).exists() and not (Path(root).is_dir() and not any(Path(root).iterdir())):
            raise UsageError(f'{root} holds something other than the generated data set {name} and is left alone; move '
                             'it away, or run in another folder.')
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except ValueError:
        return {}


def ensure(root: Union[str, Path], name: str, version: Dict[str, Any],
           files: Callable[[], Iterable[Tuple[str, bytes]]]) -> Path:
    """Makes sure that a folder holds a version of a generated data set.

    A folder that was written from another version is replaced. The new one takes its name once it is whole. Of several
    processes that call this at once, one writes and the others wait.

    Args:
        root: Folder to hold the data set. It must be absent, empty, or have been written by this function.
        name: Of the data set, which ``{root}/{name}.json`` describes.
        version: What decides the content; anything that JSON can hold.
        files: Yields paths below the root, and the files' contents.

    Returns:
        The root.

    Raises:
        UsageError: If the root holds something else or cannot be written.
    """
    final = Path(root).resolve()
    new = final.with_name(f'.{final.name}.new')
    try:
        if read_version(root, name) == version:
            return Path(root)
        final.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(final.with_name(f'.{final.name}.lock')):
            if read_version(root, name) == version:  # another process was faster
                return Path(root)
            print_log(f'Writing the generated data set {name} to {root}.', logger='current')
            shutil.rmtree(new, ignore_errors=True)
            try:
                for path, content in [*files(), (f'{name}.json', json.dumps(version).encode())]:
                    (new / path).parent.mkdir(parents=True, exist_ok=True)
                    (new / path).write_bytes(content)
                shutil.rmtree(final, ignore_errors=True)
                os.replace(new, final)
            finally:
                shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise UsageError(f'The generated data set {name} cannot be written to {root} ({error.strerror or error}); make '
                         'room there, or run in a folder that you may write to.') from error
    return Path(root)


def jpeg(image: np.ndarray) -> bytes:
    """Encodes a BGR image, (H, W, 3) uint8."""
    return cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()


def png(labels: np.ndarray) -> bytes:
    """Encodes a label map, (H, W) uint8."""
    return cv2.imencode('.png', labels)[1].tobytes()


def run_lengths(mask: np.ndarray) -> Dict[str, List[int]]:
    """A mask, (H, W) bool, as COCO's uncompressed run lengths, which run down the columns and start with zeros."""
    flat = np.concatenate([[0], mask.ravel(order='F'), [1 - mask[-1, -1]]])
    counts = np.diff(np.flatnonzero(np.diff(flat)), prepend=0).tolist()
    return dict(size=list(mask.shape), counts=counts)


def coco_document(classes: Iterable[str]) -> Dict[str, Any]:
    """A COCO annotation file without images; the ids of the categories count from 1."""
    categories = [dict(id=number, name=name, supercategory='shape') for number, name in enumerate(classes, start=1)]
    return dict(info={}, licenses=[], images=[], annotations=[], categories=categories)


def add_to_coco(document: Dict[str, Any], file_name: str, shape: Tuple[int, int],
                instances: Iterable[Tuple[int, np.ndarray, bool]]) -> None:
    """Adds an image of a shape (H, W), and its instances: label, mask (H, W) bool, and whether it is a crowd."""
    images, annotations = document['images'], document['annotations']
    images.append(dict(id=len(images) + 1, file_name=file_name, height=shape[0], width=shape[1]))
    for label, mask, crowd in instances:
        annotations.append(dict(
            id=len(annotations) + 1, image_id=len(images), category_id=label + 1, iscrowd=int(crowd),
            area=int(mask.sum()), bbox=list(cv2.boundingRect(mask.view(np.uint8))), segmentation=run_lengths(mask)))
