"""Turns scenes into the files that the hosts' loaders read.

Pictures are stored once; the COCO and the ADE20K form share them::

    images/{training,validation}/000000.jpg
    annotations/{train,val}.json                   COCO
    annotations/{training,validation}/000000.png   ADE20K
    imagenet/{train,val}/CLASS/000000.jpg          ImageFolder
"""
import json
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import cv2
import numpy as np

from .shapes_scene import Scene

# Where the files of a split are below the root.
IMAGES = dict(train='images/training', val='images/validation')
INSTANCES = dict(train='annotations/train.json', val='annotations/val.json')
LABELS = dict(train='annotations/training', val='annotations/validation')
PORTRAITS = dict(train='imagenet/train', val='imagenet/val')


def jpeg(image: np.ndarray) -> bytes:
    """Encodes a BGR picture, (H, W, 3) uint8."""
    return cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()


def png(labels: np.ndarray) -> bytes:
    """Encodes a label map, (H, W) uint8."""
    return cv2.imencode('.png', labels)[1].tobytes()


def polygons(mask: np.ndarray) -> List[List[int]]:
    """The exact outlines of a mask, as COCO polygons.

    Args:
        mask: (H, W) bool.

    Returns:
        Polygons ``[x, y, x, y, …]`` along pixel borders. A part with a hole is cut in two through it, because a COCO
        polygon has no holes.
    """
    # Every pixel becomes 2×2, so that a contour's coordinates tell a pixel's left border from its right one.
    doubled = cv2.resize(mask.view(np.uint8), None, fx=2, fy=2, interpolation=cv2.INTER_NEAREST)
    contours, hierarchy = cv2.findContours(doubled, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    for contour, (*_, parent) in zip(contours, hierarchy[0] if contours else ()):
        if parent >= 0:
            x = int(contour[:, 0, 0].min()) // 2 + 1
            left = mask & (np.arange(mask.shape[1]) < x)
            return polygons(left) + polygons(mask & ~left)
    return [((contour + 1) // 2).ravel().tolist() for contour in contours]


def run_lengths(mask: np.ndarray) -> Dict[str, List[int]]:
    """A mask, (H, W) bool, as COCO's uncompressed run lengths, which run down the columns and start with zeros."""
    flat = np.concatenate([[0], mask.ravel(order='F'), [1 - mask[-1, -1]]])
    counts = np.diff(np.flatnonzero(np.diff(flat)), prepend=0).tolist()
    return dict(size=list(mask.shape), counts=counts)


def coco_scene(file_name: str, scene: Scene) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """A COCO image and its annotations, without any ids."""
    height, width = scene.semantic.shape
    annotations = [
        dict(
            category_id=label + 1,
            iscrowd=int(crowd),
            area=int(mask.sum()),
            bbox=list(cv2.boundingRect(mask.view(np.uint8))),
            segmentation=run_lengths(mask) if crowd else polygons(mask)) for label, mask, crowd in scene.instances
    ]
    return dict(file_name=file_name, width=width, height=height), annotations


def coco_document(scenes: Iterable[Tuple[Dict[str, Any], List[Dict[str, Any]]]], classes: Sequence[str]) -> bytes:
    """A COCO annotation file.

    Args:
        scenes: Pairs from :func:`coco_scene`.
        classes: Names of the categories, whose ids count from 1.
    """
    images, annotations = [], []
    for image_id, (image, instances) in enumerate(scenes, start=1):
        images.append(dict(image, id=image_id))
        for instance in instances:
            annotations.append(dict(instance, id=len(annotations) + 1, image_id=image_id))
    categories = [dict(id=number, name=name, supercategory='shape') for number, name in enumerate(classes, start=1)]
    info = dict(description='Generated scenes of shapes')
    document = dict(info=info, licenses=[], images=images, annotations=annotations, categories=categories)
    return json.dumps(document, separators=(',', ':')).encode()
