"""Predicts images, draws the predictions, and saves them as files that programs read."""

import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Optional

import cv2
import mmcv
import numpy as np
from mmengine.config import Config
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.progress import track

from mmsoft.utils import UsageError, on_one_line
from mmsoft.utils.config import Options, datasets, load_config
from mmsoft.utils.files import atomic_write, check_new, whole_or_none

from .tasks import TASKS, Task, build_task

SUFFIXES = ('.bmp', '.gif', '.jfif', '.jpeg', '.jpg', '.pgm', '.png', '.ppm', '.tif', '.tiff', '.webp')
FORMATS = ('BMP', 'GIF', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')  # for some others, Pillow starts programs


class BrokenImage(Exception):
    """A file that cannot be read as a whole image, and why."""


def predict(
    config: str,
    checkpoint: str,
    source: str,
    out_dir: str,
    device: Optional[str] = None,
    score_thr: float = 0.3,
    save_pred: bool = False,
    cfg_options: Options = None,
) -> list[Path]:
    """Draws predictions as ``OUT_DIR/vis/…``, named like the images, and optionally saves them in ``OUT_DIR/preds``.

    Arguments are the options of ``tools/predict.py``; ``source`` is an image or a folder. For the saved files see
    :class:`.tasks.Detection`, :class:`.tasks.Segmentation` and :class:`.tasks.Classification`. Returns broken images,
    which were reported and skipped. UsageError if files are missing, ``out_dir`` is not empty or options do not fit.
    """
    cfg, out = load_config(config, cfg_options), Path(out_dir)
    names = find_inputs(cfg, source, out_dir)
    task = build_task(cfg, checkpoint, device, score_thr)
    files = result_names(names, task.suffix)
    broken: list[Path] = []
    for path, image, prepared in prepare(task, names, broken):
        sample = task.forward(prepared)
        drawing = out / 'vis' / names[path]
        with whole_or_none(drawing):
            task.draw(image[..., ::-1].copy(), sample, drawing)
        if save_pred:
            with atomic_write(out / 'preds' / files[path]) as file:
                file.write(task.encode(sample))
    print(f'Results of {len(names) - len(broken)} of {len(names)} images are in {out}.')
    return broken


def find_inputs(cfg: Config, source: str, out_dir: str) -> dict[Path, Path]:
    """:func:`find_images`; UsageError if ``out_dir`` is not empty or the pipeline loads unlike :func:`read_image`."""
    for step in [step for dataset in datasets(cfg, 'test_dataloader') for step in dataset.get('pipeline') or ()]:
        if step.get('color_type', 'color') != 'color':
            ours = f'the tools read colours, rotated as EXIF data say: use {TASKS[cfg.default_scope].library}'
            raise UsageError(f'The test pipeline has color_type={step["color_type"]!r}, and {ours}.')
    check_new(out_dir or '.')  # as Path understands it
    return find_images(source)


def prepare(task: Task, images: Iterable[Path], broken: list[Path]) -> Iterator[tuple[Path, np.ndarray, dict]]:
    """Yields paths, BGR images and outputs of :meth:`.tasks.Task.prepare`; reports and collects broken images."""
    for path in track(list(images), description='Images'):
        try:
            image = read_image(path)
            prepared = task.prepare(image)
        except (BrokenImage, cv2.error, ValueError) as error:  # from resizing, if an image shrinks to nothing
            if not isinstance(error, BrokenImage) and max(image.shape[:2]) < 64 * min(image.shape[:2]):
                raise
            print(on_one_line(f'{path} is skipped, it cannot be read as an image: {error}'), file=sys.stderr)
            broken.append(path)
        else:
            yield path, image, prepared


def find_images(source: str) -> dict[Path, Path]:
    """Images in a folder and its subfolders, or one file of any name, with relative paths for their drawings.

    Broken links and other files with an image's suffix are left to :func:`read_image`. UsageError if nothing is found.
    """
    root = Path(source)
    if not source or not (root.is_dir() or root.is_file()):
        raise UsageError(f'There is no image or folder {source}.')
    base, found = (root, sorted(root.rglob('*'))) if root.is_dir() else (root.parent, [root])
    images = [path for path in found if path == root or (path.suffix.lower() in SUFFIXES and not path.is_dir())]
    if not images:
        raise UsageError(f'{source} contains no images: no file ends with {", ".join(SUFFIXES)}.')
    names = {path: path.relative_to(base) for path in images}
    as_png = result_names(names, '.png')
    drawn = set(SUFFIXES) - {'.gif', '.jfif', '.pgm'}  # formats in which OpenCV writes colours
    own = {path: name if name.suffix.lower() in drawn else as_png[path] for path, name in names.items()}
    return own if len(own) == len(set(own.values())) else as_png


def read_image(path: Path) -> np.ndarray:
    """Reads an image as the OpenMMLab libraries do: BGR, (H, W, 3), its first frame, rotated as its EXIF data say.

    Raises BrokenImage if the file cannot be read as an image, is cut off (which OpenCV accepts), has more pixels than
    Pillow's limit against decompression bombs, 179 million, or is so narrow that a pipeline would shrink it to nothing.
    """
    if path.exists() and not path.is_file():
        raise BrokenImage('it is not a file')
    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            opened.load()
            if (image := mmcv.imfrombytes(data)) is None:  # animations, for example
                if opened.mode[0] in 'FI':
                    raise ValueError(f'its pixels are numbers of another kind than 8 bits, {opened.mode}')
                image = np.asarray(ImageOps.exif_transpose(opened).convert('RGB'))[..., ::-1].copy()
    except Exception as error:  # decoders raise exceptions of many types
        unknown = isinstance(error, UnidentifiedImageError)
        raise BrokenImage('its format is unknown' if unknown else str(error) or type(error).__name__) from error
    height, width = image.shape[:2]
    if max(height, width) > 1000 * min(height, width):
        raise BrokenImage(f'{width}x{height} pixels are too narrow')
    return image


def result_names(names: dict[Path, Path], suffix: str) -> dict[Path, Path]:
    """Names of results for names of images: ``a.png`` for ``a.jpg``, or ``a.jpg.png`` if there is another ``a``."""
    count = Counter([*names.values(), *(name.with_suffix('') for name in names.values())])
    alone = {path for path, name in names.items() if count[name.with_suffix('')] == 1}
    return {path: one.with_suffix(suffix) if path in alone else Path(f'{one}{suffix}') for path, one in names.items()}
