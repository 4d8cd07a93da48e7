"""Which pictures there are, what they hold, and what their results are called."""
import io
from collections import Counter
from pathlib import Path
from typing import Dict, List

import mmcv
import numpy as np
from PIL import Image

from mmsoft.utils import UsageError

SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.pgm', '.png', '.ppm', '.tif', '.tiff', '.webp')


class BrokenImage(Exception):
    """A file that is not a whole picture; the message says why."""


def find_images(source: Path, out_dir: Path) -> List[Path]:
    """Pictures below a folder, in order, without results of an earlier run; or the one file, whatever its name.

    Raises:
        UsageError: If there is nothing.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise UsageError(f'There is no image or folder {source}.')
    results = {out_dir.resolve() / name for name in ('vis', 'preds')}
    images = sorted(path for path in source.rglob('*')
                    if path.suffix.lower() in SUFFIXES and path.is_file() and not results & set(path.resolve().parents))
    if not images:
        raise UsageError(f'{source} holds no images, that is no files that end with {", ".join(SUFFIXES)}.')
    return images


def read_image(path: Path) -> np.ndarray:
    """Reads a picture as the hosts' loaders do: BGR, (H, W, 3).

    Raises:
        BrokenImage: If the file cannot be read as a picture, or is cut off, which the hosts' decoder lets pass.
    """
    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)) as picture:
            picture.load()
        image = mmcv.imfrombytes(data)
    except Exception as error:  # every decoder has errors of its own
        raise BrokenImage(str(error) or type(error).__name__) from error
    if image is None:
        raise BrokenImage('of a kind that OpenCV does not read')
    return image


def label_names(names: List[Path]) -> Dict[Path, Path]:
    """Names of label maps: ``a.png`` for ``a.jpg``, or ``a.jpg.png`` where there is another ``a``."""
    count = Counter(name.with_suffix('') for name in names)
    return {name: name.with_suffix('.png') if count[name.with_suffix('')] == 1 else name.with_name(f'{name.name}.png')
            for name in names}
