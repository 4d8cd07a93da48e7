"""Pathfinder: whether two discs are the ends of one dashed curve, by the rules of Linsley et al. (arXiv 1805.08315).

Long Range Arena's hard setting at 32×32 pixels: curves of 14 dashes, and five shorter ones that lead astray.
"""

import random
from functools import cache
from typing import Optional

import cv2
import numpy as np
from mmengine.registry import DATASETS
from PIL import Image

from .sequences import Sequences

SIDE, SCALE = 32, 2  # pixels; images are drawn at twice their size
DASH, GAP, CIRCLE = 2, 1, 7  # length of a dash, half the gap between two, distance of the curves' beginnings
DASHES, SHORT_DASHES, SHORT_CURVES = 14, 4, 5
RADIUS = 1.5  # of the discs
TARGET, DISTRACTOR, DISC = 1.5, 2.0, 1.0  # brightness
TRIES = 8  # for each dash; with fewer, 99% of the curves would be given up
Point = np.ndarray  # row and column


def towards(angle: float) -> Point:
    return np.array([np.sin(angle), np.cos(angle)])


class Curve:
    """A curve of dashes that grows at its head.

    Attributes:
        dashes: Ends of each dash.
        taken: Where its dashes but the last one are, with a margin, (H, W) of bool.
    """

    def __init__(self, tail: Point, angle: float) -> None:
        self.dashes = [(tail, tail + DASH * towards(angle))]
        self.pivot, self.angle = tail - GAP * towards(angle), angle
        self.taken = np.zeros((SIDE, SIDE), bool)

    def fits(self, taken: np.ndarray) -> bool:
        """Whether its last dash is in the image and touches nothing that is taken."""
        ends = np.stack(self.dashes[-1])
        return bool((ends >= 1).all() and (ends < SIDE - 1).all() and not (pixels(self.dashes[-1])[0] & taken).any())

    def extend(self, rng: random.Random, taken: np.ndarray) -> bool:
        """Adds a dash that continues the curve, with a turn of less than 90 degrees; False if there is no room."""
        pivot, reach = self.pivot + (DASH + 2 * GAP) * towards(self.angle), DASH + GAP
        angles = np.arange(0, 2 * np.pi, 1 / reach)  # one for each pixel of the circle
        weights = np.cos(np.abs((angles - self.angle + np.pi) % (2 * np.pi) - np.pi)).clip(0) ** 2
        heads = np.round(pivot + reach * np.stack([np.sin(angles), np.cos(angles)], 1)).astype(int)
        inside = ((heads >= 0) & (heads < SIDE)).all(1)
        weights[inside] *= ~taken[tuple(heads[inside].T)]
        weights[~inside] = 0
        if not weights.any():
            return False
        before = self.dashes[-1]
        for angle in rng.choices(angles, weights, k=TRIES):
            self.dashes.append((pivot + GAP * towards(angle), pivot + reach * towards(angle)))
            if self.fits(taken | self.taken):
                self.taken |= margin(before)
                self.pivot, self.angle = pivot, angle
                return True
            self.dashes.pop()
        return False


def pixels(dash: tuple[Point, Point]) -> tuple[np.ndarray, np.ndarray]:
    """A dash without and with the pixels next to it, (H, W) of bool."""
    return _pixels(*(round(float(x)) for end in dash for x in end))


@cache
def _pixels(*ends: int) -> tuple[np.ndarray, np.ndarray]:
    line = np.zeros((SIDE, SIDE), np.uint8)
    cv2.line(line, ends[1::-1], ends[:1:-1], 1, 1)
    return line.astype(bool), cv2.dilate(line, cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))).astype(bool)


def margin(dash: tuple[Point, Point]) -> np.ndarray:
    return pixels(dash)[1]


def draw_curves(rng: random.Random) -> Optional[list[Curve]]:
    """Two curves that begin near each other and grow in turns; None if there was no room."""
    low, high = 2 * CIRCLE, SIDE - 2 * CIRCLE
    tail = np.array([rng.uniform(low, high), rng.uniform(low, high)])
    other = tail + CIRCLE * towards(rng.uniform(0, 2 * np.pi))
    curves = [Curve(one, rng.uniform(0, 2 * np.pi)) for one in (tail, other)]
    nothing = np.zeros((SIDE, SIDE), bool)
    if not curves[0].fits(nothing) or not curves[1].fits(margin(curves[0].dashes[0])):
        return None
    for _ in range(DASHES - 1):
        for curve, rival in (curves, curves[::-1]):
            if not curve.extend(rng, rival.taken | margin(rival.dashes[-1])):
                return None
    return curves


def draw_distractors(rng: random.Random, taken: np.ndarray) -> list[Curve]:
    """Short curves where there is room."""
    curves = []
    for _ in range(SHORT_CURVES):
        for _ in range(20):
            curve = Curve(np.array([rng.uniform(1, SIDE - 1), rng.uniform(1, SIDE - 1)]), rng.uniform(0, 2 * np.pi))
            if curve.fits(taken) and all(curve.extend(rng, taken) for _ in range(SHORT_DASHES - 1)):
                taken = taken | curve.taken | margin(curve.dashes[-1])
                curves.append(curve)
                break
    return curves


def draw_image(rng: random.Random, connected: bool) -> np.ndarray:
    """An image of shape (32, 32), uint8."""
    curves = None
    while curves is None:
        curves = draw_curves(rng)
    taken = np.logical_or.reduce([curve.taken | margin(curve.dashes[-1]) for curve in curves])
    image = np.zeros((SCALE * SIDE,) * 2, np.float32)
    for brightness, group in ((TARGET, curves), (DISTRACTOR, draw_distractors(rng, taken))):
        for start, end in (dash for curve in group for dash in curve.dashes):
            ends = [tuple(int(x) for x in np.round(SCALE * point[::-1])) for point in (start, end)]
            cv2.line(image, *ends, brightness, 1)
    first = rng.randrange(2)
    ends = curves[first].dashes[0][0], curves[first if connected else 1 - first].dashes[-1][1]
    image = np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.LANCZOS))
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for row, column in ends:
        image = np.maximum(image, DISC * ((rows - row) ** 2 + (columns - column) ** 2 <= RADIUS**2))
    return (255 * image.clip(0) / image.max()).astype(np.uint8)


@DATASETS.register_module()
class Pathfinder(Sequences):
    """Images of 32×32 pixels, row by row, of 256 greys; class 1 if the discs are the ends of one curve.

    Args:
        **kwargs: Those of :class:`Sequences`.
    """

    METAINFO = dict(classes=('apart', 'connected'))

    def __init__(self, **kwargs) -> None:
        super().__init__(kind='pathfinder32', **kwargs)

    def draw(self, rng: random.Random) -> tuple[list[int], int]:
        """See :class:`Sequences`."""
        label = rng.randrange(2)
        return draw_image(rng, bool(label)).ravel().tolist(), label
