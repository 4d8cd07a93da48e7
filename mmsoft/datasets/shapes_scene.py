"""Draws scenes of shapes; a scene depends on nothing but the random generator it is drawn with.

The background is dull, and its classes differ in texture alone. The texture of an object is independent of its class,
and the hues of neighbouring classes overlap, so only the outline tells the class.
"""

import colorsys
import math
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

import cv2
import numpy as np

MIN_SIZE = 8  # of an object, in pixels
MIN_VISIBLE = 0.7  # fraction of an object's pixels, whatever is in front of it
MAX_TURN = 0.5  # of an object, in radians to either side
MIN_CONTRAST = 110  # between an object's colours and the mean of what is behind it, as a distance in BGR
DULL, VIVID = (0.0, 0.3), (0.6, 1.0)  # saturation of the background and of objects
HUE_SPREAD = 0.06  # standard deviation of a class's hues, in turns of the colour circle
_SUBPIXEL_BITS = 4
_SHADOW = 10  # maximum reach of a shadow beyond its object, in pixels


class Instance(NamedTuple):
    """One object, or one crowd of small objects of a class."""

    label: int  # index into OUTLINES
    mask: np.ndarray  # visible pixels, (H, W) bool; never empty
    crowd: bool


class Scene(NamedTuple):
    """An image and its annotations. Semantic labels are 0 for clutter, then the outlines, then the textures."""

    image: np.ndarray  # (H, W, 3) uint8, BGR
    instances: list[Instance]  # from back to front
    semantic: np.ndarray  # (H, W) uint8


def _polar(radii: Sequence[float]) -> np.ndarray:
    """Vertices (N, 2) at equal angles, at distances from the centre."""
    angles = np.linspace(0, 2 * np.pi, len(radii), endpoint=False)
    return np.stack([np.sin(angles), -np.cos(angles)], 1) * np.asarray(radii)[:, None]


_T = np.linspace(0, 2 * np.pi, 48, endpoint=False)
_HEART_Y = 5 * np.cos(2 * _T) + 2 * np.cos(3 * _T) + np.cos(4 * _T) - 13 * np.cos(_T)
_CROSS = [(-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1), (1, 3), (-1, 3), (-1, 1), (-3, 1), (-3, -1), (-1, -1)]
OUTLINES: dict[str, np.ndarray] = dict(  # without holes, in any unit; they are scaled when they are drawn
    circle=_polar([1] * 48),
    square=np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)], float),
    triangle=_polar([1] * 3),
    star=_polar([1, 0.42] * 5),
    cross=np.array(_CROSS, float),
    heart=np.stack([16 * np.sin(_T) ** 3, _HEART_Y], 1),
)


def _waves(rng: np.random.Generator, grid: np.ndarray, angle: float) -> np.ndarray:
    """A wave across the grid (2, H, W) in the given direction, between -1 and 1."""
    frequency, phase = 2 * math.pi / rng.uniform(7, 20), rng.uniform(0, 2 * math.pi)
    return np.sin(frequency * math.cos(angle) * grid[0] + frequency * math.sin(angle) * grid[1] + phase)


def _crossed(rng: np.random.Generator, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    angle = rng.uniform(0, math.pi)
    return _waves(rng, grid, angle), _waves(rng, grid, angle + math.pi / 2)


def _clouds(rng: np.random.Generator, grid: np.ndarray) -> np.ndarray:
    field = np.zeros(grid.shape[1:], np.float32)
    for cells in (3, 7, 15):
        noise = rng.standard_normal((cells, cells), np.float32) / cells
        field += cv2.resize(noise, field.shape[::-1], interpolation=cv2.INTER_CUBIC)
    return 0.5 + 1.5 * field


# Each maps a grid of pixel coordinates (2, H, W) to values (H, W), which are clipped to [0, 1].
TEXTURES: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = dict(
    clouds=_clouds,
    stripes=lambda rng, grid: 0.5 + _waves(rng, grid, rng.uniform(0, math.pi)),
    checks=lambda rng, grid: 0.5 + 4 * math.prod(_crossed(rng, grid)),
    dots=lambda rng, grid: 3 * (sum(_crossed(rng, grid)) - 0.8),
)


def _texture(kind: int, rng: np.random.Generator, grid: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """An image (H, W, 3) of a texture between two colours."""
    return _blend(np.clip(list(TEXTURES.values())[kind](rng, grid), 0, 1), low, high)


def _colour(rng: np.random.Generator, saturation: tuple[float, float], hue: Optional[float] = None) -> np.ndarray:
    """A random colour in BGR, of any hue if None."""
    hue = rng.random() if hue is None else hue % 1
    return 255 * np.array(colorsys.hsv_to_rgb(hue, rng.uniform(*saturation), rng.uniform(0.4, 1))[::-1], np.float32)


def _blend(field: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return low + field[..., None] * (high - low)


def _crescent() -> np.ndarray:
    angle = np.linspace(-0.6 * np.pi, 0.6 * np.pi, 24)
    x, y, end = np.cos(angle), np.sin(angle), math.cos(0.6 * np.pi)
    return np.concatenate([np.stack([x, y], 1), np.stack([end + 0.45 * (x - end), y], 1)[::-1]])


SKIES = dict(  # colour of the sky, outline of the sun or moon in it, and its colour; colours are BGR
    day=((235, 190, 120), _polar([1, 0.6] * 10), (40, 210, 255)), night=((70, 35, 25), _crescent(), (235, 245, 250))
)
SKY_HEIGHT = 0.16  # of a scene


class Canvas:
    """Paints a scene, with sizes in pixels, from back to front, and tracks which pixels of it stay visible."""

    def __init__(self, rng: np.random.Generator, width: int, height: int) -> None:
        self._rng = rng
        self._grid = np.mgrid[:height, :width][::-1].astype(np.float32)
        self._image, self._semantic = self._background()
        self._owner = np.zeros((height, width), np.int16)
        self._placed: list[tuple[Optional[int], bool, int]] = []  # label (None for a sky), whether a crowd, pixels
        for _ in range(rng.integers(0, 3)):
            self._scribble()

    def paint_sky(self, kind: str) -> None:
        """Paints a strip of sky, a key of ``SKIES``, along the upper border, and keeps most of it visible."""
        height, width = self._owner.shape
        rows, (sky, outline, colour) = round(SKY_HEIGHT * height), SKIES[kind]
        self._image[:rows] = np.float32(sky) + self._rng.normal(0, 8, 3)
        points = (outline - (outline.max(0) + outline.min(0)) / 2) * 0.8 * rows / np.ptp(outline, 0).max()
        centre = self._rng.uniform(0.6 * rows, width - 0.6 * rows), rows / 2
        self._image = _blend(self._rasterise([points + centre]), self._image, np.float32(colour))
        self._semantic[:rows] = 0
        self._placed.append((None, False, rows * width))
        self._owner[:rows] = len(self._placed)

    def place(self, label: int, size: float, members: int = 1) -> bool:
        """Places an object, whose longer side has ``size`` pixels, or a crowd of ``members``, in front of all others.

        ``label`` indexes ``OUTLINES``. Returns False, and changes nothing, if no place leaves all visible enough.
        """
        height, width = self._owner.shape
        extent = size * (1 if members == 1 else 0.5 * members**0.5)
        margin = np.minimum(0.3 * extent, (width, height))
        for _ in range(8):
            centre = self._rng.uniform(margin, np.array([width, height]) - margin)
            spread = 0 if members == 1 else extent / 2
            outlines = [self._outline(label, size) + self._rng.normal(centre, spread) for _ in range(members)]
            mask = (alpha := self._rasterise(outlines)) > 0.5
            left = np.bincount(self._owner[~mask], minlength=len(self._placed) + 1)
            if mask.sum() >= MIN_SIZE and all(left[i] >= MIN_VISIBLE * n for i, (*_, n) in enumerate(self._placed, 1)):
                self._placed.append((label, members > 1, int(mask.sum())))
                self._owner[mask] = len(self._placed)
                self._paint(alpha, label)
                return True
        return False

    def scene(self) -> Scene:
        """The scene as painted so far, with the noise of a camera."""
        rng, semantic, instances = self._rng, self._semantic.copy(), []
        for number, (label, crowd, _) in enumerate(self._placed, start=1):
            if label is not None:
                instances.append(Instance(label, self._owner == number, crowd))
                semantic[instances[-1].mask] = 1 + label
        light = _blend(self._slope(), *rng.uniform(0.7, 1.15, (2, 1)).astype(np.float32))
        noise = rng.standard_normal(self._image.shape, np.float32) * rng.uniform(2, 8)
        return Scene(np.clip(self._image * light + noise, 0, 255).astype(np.uint8), instances, semantic)

    def _slope(self) -> np.ndarray:
        """A ramp from 0 to 1 across the image in some direction, (H, W)."""
        angle = self._rng.uniform(0, 2 * math.pi)
        ramp = math.cos(angle) * self._grid[0] + math.sin(angle) * self._grid[1]
        return (ramp - ramp.min()) / (ramp.max() - ramp.min())

    def _background(self) -> tuple[np.ndarray, np.ndarray]:
        """One to three textures side by side, with wavy borders."""
        rng, grid = self._rng, self._grid
        kinds = rng.permutation(len(TEXTURES))[: rng.integers(1, 4)]
        place = self._slope() + 0.06 * np.sin(grid.sum(0) * rng.uniform(0.03, 0.08))
        region = np.searchsorted(np.sort(rng.uniform(0.2, 0.8, len(kinds) - 1)), place)
        image = np.empty(grid.shape[1:] + (3,), np.float32)
        for index, kind in enumerate(kinds):
            low = _colour(rng, DULL)
            high = low + np.where(low.mean() < 128, 1, -1) * rng.uniform(40, 90)
            np.copyto(image, _texture(kind, rng, grid, low, high), where=(region == index)[..., None])
        return image, (1 + len(OUTLINES) + kinds[region]).astype(np.uint8)

    def _scribble(self) -> None:
        """A thin line that belongs to no class."""
        height, width = self._owner.shape
        steps = self._rng.normal(0, 0.04 * max(height, width), (24, 2)).cumsum(0).cumsum(0) / 4
        points = (steps + self._rng.uniform(0, (width, height))).round().astype(np.int32)
        line = np.zeros((height, width), np.uint8)
        cv2.polylines(line, [points], False, 255, int(self._rng.integers(1, 4)), cv2.LINE_AA)
        self._image = _blend(line / np.float32(255), self._image, _colour(self._rng, DULL))
        self._semantic[line > 127] = 0

    def _outline(self, label: int, size: float) -> np.ndarray:
        """A class's outline, stretched, rotated and centred at the origin, (N, 2) in pixels."""
        angle = self._rng.uniform(-MAX_TURN, MAX_TURN)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        stretch = np.exp(self._rng.uniform(-0.2, 0.2)), 1
        points = list(OUTLINES.values())[label] * stretch @ turn
        points -= (points.max(0) + points.min(0)) / 2
        return points * size / np.ptp(points, 0).max()

    def _rasterise(self, outlines: list[np.ndarray]) -> np.ndarray:
        """The fraction of each pixel that the outlines cover, (H, W) float32."""
        alpha = np.zeros(self._owner.shape, np.uint8)
        for points in outlines:
            fixed = np.round((points - 0.5) * 2**_SUBPIXEL_BITS).astype(np.int32)  # OpenCV counts from pixel centres
            cv2.fillPoly(alpha, [fixed], 255, cv2.LINE_AA, _SUBPIXEL_BITS)
        return alpha / np.float32(255)

    def _paint(self, alpha: np.ndarray, label: int) -> None:
        """Fills the covered pixels with a texture that stands out from what is there, and casts a shadow."""
        rng = self._rng
        x, y, width, height = cv2.boundingRect((alpha > 0).view(np.uint8))
        box = slice(max(y - _SHADOW, 0), y + height + _SHADOW), slice(max(x - _SHADOW, 0), x + width + _SHADOW)
        alpha, image, grid = alpha[box], self._image[box], self._grid[(slice(None), *box)]
        behind = image[alpha > 0.5].mean(0)
        low = high = behind
        while min(np.linalg.norm(low - behind), np.linalg.norm(high - behind)) < MIN_CONTRAST:
            hue = label / len(OUTLINES) + rng.normal(0, HUE_SPREAD)
            low = _colour(rng, VIVID, hue)
            high = low + rng.uniform(0, 0.3) * (_colour(rng, VIVID, hue) - low)
        offset = np.float32([[1, 0, rng.uniform(-4, 4)], [0, 1, rng.uniform(-4, 4)]])
        shadow = cv2.GaussianBlur(cv2.warpAffine(alpha, offset, alpha.shape[::-1]), (0, 0), 2)
        image *= 1 - rng.uniform(0, 0.5) * shadow[..., None]
        image[:] = _blend(alpha, image, _texture(rng.integers(len(TEXTURES)), rng, grid, low, high))


def draw_scene(rng: np.random.Generator, width: int, height: int) -> Scene:
    """A scene of up to a dozen objects; about one in twenty is empty, one in ten has a crowd."""
    canvas = Canvas(rng, width, height)
    if rng.random() < 0.05:
        return canvas.scene()
    largest = min(width, height) / 2
    if rng.random() < 0.1:
        canvas.place(int(rng.integers(len(OUTLINES))), rng.uniform(MIN_SIZE, 2 * MIN_SIZE), members=rng.integers(8, 16))
    for _ in range(rng.integers(1, 10)):
        # The exponent favours larger objects: very small ones are hard to tell apart.
        size = MIN_SIZE * (largest / MIN_SIZE) ** (rng.random() ** 0.3)
        canvas.place(int(rng.integers(len(OUTLINES))), size)
    return canvas.scene()


def draw_sky_scene(rng: np.random.Generator, width: int, height: int) -> Scene:
    """A scene of one to seven objects, larger than the smallest in other scenes, under a sky that sets their labels."""
    night, canvas = int(rng.integers(len(SKIES))), Canvas(rng, width, height)
    canvas.paint_sky(list(SKIES)[night])
    smallest, largest = 1.5 * MIN_SIZE, min(width, height) / 2
    for _ in range(rng.integers(1, 8)):
        canvas.place(int(rng.integers(len(OUTLINES))), smallest * (largest / smallest) ** (rng.random() ** 0.3))
    return named_by_sky(canvas.scene(), night)


def named_by_sky(scene: Scene, night: int) -> Scene:
    """The scene with labels that depend on its sky: those of day, then those of night."""
    return scene._replace(instances=[one._replace(label=one.label + night * len(OUTLINES)) for one in scene.instances])


def draw_portrait(rng: np.random.Generator, side: int, label: int) -> Scene:
    """A square image of a single object, whose label is an index into ``OUTLINES``."""
    canvas = Canvas(rng, side, side)
    while not canvas.place(label, side * rng.uniform(0.3, 0.9)):
        pass
    return canvas.scene()
