"""Makes the data set in COCO's format: overlapping tiles of one photograph, and whole photographs to test on."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union
from xml.etree import ElementTree

import cv2
import numpy as np

from mmsoft.utils import UsageError

TRAINING = '2019_YELL_2_528000_4978000_image_crop2'
TESTED = dict(validation='2019_YELL_2_541000_4977000_image_crop', florida='OSBS_029', california='SOAP_061')
"""Photographs by the names of their annotation files; the last two are of other forests."""
SIZE, STEP = 400, 200
MINIMUM = 0.4
RAW = [cv2.IMWRITE_PNG_COMPRESSION, 0]  # read three times as fast


class Photograph(NamedTuple):
    """An image (H, W, 3) and its boxes (n, 4), left, top, right and bottom in pixels."""

    image: np.ndarray
    boxes: np.ndarray


def read(folder: Path, name: str) -> Photograph:
    """Reads NAME.png and the Pascal VOC annotations in NAME.xml; all objects are trees.

    Raises:
        UsageError: If the folder lacks one of them.
    """
    image = cv2.imread(str(folder / f'{name}.png'))
    if image is None or not (folder / f'{name}.xml').is_file():
        raise UsageError(
            f'{folder} has no {name}.png and {name}.xml; it must be the folder data/ of the package deepforest.'
        )
    sides = ('xmin', 'ymin', 'xmax', 'ymax')
    found = ElementTree.parse(folder / f'{name}.xml').getroot().iter('object')
    boxes = [[float(one.findtext(f'bndbox/{side}')) for side in sides] for one in found]
    return Photograph(image, np.array(boxes).reshape(-1, 4))


def starts(length: int, size: int, step: int) -> list[int]:
    """Where tiles begin along a side so that they cover it; the last one ends with it."""
    last = max(length - size, 0)
    return [*range(0, last, step), last]


def tiles(photograph: Photograph, size: int = SIZE, step: int = STEP, minimum: float = MINIMUM) -> Iterator[Photograph]:
    """Tiles of at most ``size``² pixels, with the boxes of which at least the part ``minimum`` is inside, cropped."""
    height, width = photograph.image.shape[:2]
    for top in starts(height, size, step):
        for left in starts(width, size, step):
            image = photograph.image[top : top + size, left : left + size]
            corner, limit = [left, top] * 2, [image.shape[1], image.shape[0]] * 2
            boxes = np.clip(photograph.boxes - corner, 0, limit)
            yield Photograph(image, boxes[areas(boxes) >= minimum * areas(photograph.boxes)])


def areas(boxes: np.ndarray) -> np.ndarray:
    """Areas of boxes (n, 4)."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def coco(names: Sequence[str], photographs: Sequence[Photograph]) -> dict[str, Any]:
    """A COCO annotation file of images by their file names; ids count from 1."""
    images, annotations = [], []
    for number, (name, (image, boxes)) in enumerate(zip(names, photographs), start=1):
        images.append(dict(id=number, file_name=name, height=image.shape[0], width=image.shape[1]))
        for left, top, right, bottom in boxes.tolist():
            box = [left, top, right - left, bottom - top]
            one = dict(image_id=number, category_id=1, iscrowd=0, bbox=box, area=box[2] * box[3])
            annotations.append(dict(one, id=len(annotations) + 1))
    return dict(images=images, annotations=annotations, categories=[dict(id=1, name='tree')])


def make_data(source: Union[str, Path], root: Union[str, Path]) -> None:
    """Writes the data set, the annotation file of the training last.

    Args:
        source: Folder ``data`` of the package deepforest.
        root: Folder to write to.

    Raises:
        UsageError: If a photograph is missing.
    """
    source, root = Path(source), Path(root)
    training = list(tiles(read(source, TRAINING)))
    parts = {split: [read(source, name)] for split, name in TESTED.items()}
    names = {split: [f'{split}.png'] for split in parts}
    names['train'], parts['train'] = [f'{number:04d}.png' for number in range(len(training))], training
    for split, photographs in parts.items():
        folder = root / ('tiles' if split == 'train' else 'photographs')
        folder.mkdir(parents=True, exist_ok=True)
        for name, photograph in zip(names[split], photographs):
            cv2.imwrite(str(folder / name), photograph.image, RAW)
        (root / f'{split}.json').write_text(json.dumps(coco(names[split], photographs)))
