"""Which pictures there are, what they hold, and what their results are called."""
import io
import os
from collections import Counter
from pathlib import Path
from typing import Dict, List

import mmcv
import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mmsoft.utils import UsageError

SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.pgm', '.png', '.ppm', '.tif', '.tiff', '.webp')
FORMATS = ('BMP', 'GIF', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')
"""What a file may be, whatever its name: for some others, Pillow starts programs."""


class BrokenImage(Exception):
    """A file that is not a whole picture; the message says why."""


def find_images(source: Path, out_dir: Path) -> List[Path]:
    """Pictures below a folder, in order, without results of an earlier run; or the one file, whatever its name.

    Links to nowhere and in circles and whatever else is called like a picture are among them, for :func:`read_image` to
    refuse.

    Raises:
        UsageError: If there is nothing.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise UsageError(f'There is no image or folder {source}.')
    results = {Path(os.path.realpath(out_dir), name) for name in ('vis', 'preds')}  # resolve() dislikes circles
    images = sorted(path for path in source.rglob('*') if path.suffix.lower() in SUFFIXES and not path.is_dir()
                    and not results & set(Path(os.path.realpath(path)).parents))
    if not images:
        raise UsageError(f'{source} holds no images, that is no files that end with {", ".join(SUFFIXES)}.')
    return images


def read_image(path: Path) -> np.ndarray:
    """Reads a picture as the hosts' loaders do: BGR, (H, W, 3), the first of several, turned as its EXIF data say.

    Raises:
        BrokenImage: If the file cannot be read as a picture, is cut off, which the hosts' decoder lets pass, or has more
            pixels than Pillow takes for an attack on the memory, 179 million.
    """
    if path.exists() and not path.is_file():
        raise BrokenImage('it is no file')
    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            picture.load()
            image = mmcv.imfrombytes(data)
            if image is None:  # animations, for example
                image = np.asarray(ImageOps.exif_transpose(picture).convert('RGB'))[..., ::-1].copy()
    except Exception as error:  # every decoder has errors of its own
        raise BrokenImage('no picture' if isinstance(error, UnidentifiedImageError) else str(error)) from error
    return image


def label_names(names: List[Path]) -> Dict[Path, Path]:
    """Names of label maps: ``a.png`` for ``a.jpg``, or ``a.jpg.png`` where there is another ``a``."""
    count = Counter(name.with_suffix('') for name in names)
    return {name: name.with_suffix('.png') if count[name.with_suffix('')] == 1 else name.with_name(f'{name.name}.png')
            for name in names}
