"""From images to predictions, drawn and as files that programs read."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Optional

import numpy as np
from rich.progress import track

from mmsoft.utils import on_one_line
from mmsoft.utils.config import load_config
from mmsoft.utils.files import whole_or_none

from .images import BrokenImage, check_new, find_images, read_image, result_names
from .tasks import Task, build_task


def predict(
    config: str,
    checkpoint: str,
    source: str,
    out_dir: str,
    device: Optional[str] = None,
    score_thr: float = 0.3,
    save_pred: bool = False,
) -> list[Path]:
    """Draws predictions as ``OUT_DIR/vis/…``, named like the images, and optionally saves them in ``OUT_DIR/preds``.

    Images are predicted one after the other; for batches of small images, there are the libraries' inferencers.

    Args:
        config, checkpoint (str): Config of a detector, segmenter or classifier, and its weights.
        source (str): An image, or a folder of images.
        out_dir (str): Where the results go, a new or empty folder.
        device (str, optional): ``'cpu'``, ``'cuda:0'``, …. Defaults to None: the best there is.
        score_thr (float): Detections with a lower score are not drawn.
        save_pred (bool): Whether to save the prediction of each image as a file that programs read, see
            :class:`.tasks.Detection`, :class:`.tasks.Segmentation` and :class:`.tasks.Classification`.

    Returns:
        list[Path]: Broken images, which were named and skipped.

    Raises:
        UsageError: If files are missing, ``out_dir`` is not empty or options do not fit.
    """
    out, cfg = Path(out_dir), load_config(config)
    names = find_images(source)
    check_new(out_dir)
    task = build_task(cfg, checkpoint, device, score_thr)
    files = result_names(names.values(), task.suffix)

    broken: list[Path] = []
    for path, image, prepared in prepare(task, names, broken):
        sample, drawing = task.forward(prepared), out / 'vis' / names[path]
        with whole_or_none(drawing):
            task.draw(image[..., ::-1].copy(), sample, drawing)
        if save_pred:
            task.save(sample, out / 'preds' / files[names[path]])
    print(
        f'Drawings of {len(names) - len(broken)} of {len(names)} images are in {out / "vis"}'
        + (f', predictions in {out / "preds"}.' if save_pred else '.')
    )
    return broken


def prepare(task: Task, images: Iterable[Path], broken: list[Path]) -> Iterator[tuple[Path, np.ndarray, dict]]:
    """Reads images and runs a config's pipeline on them. Broken ones are named, and appended to ``broken``.

    Yields:
        tuple[Path, np.ndarray, dict]: The path, the BGR image, and what :meth:`.tasks.Task.prepare` makes of it.
    """
    for path in track(list(images), description='Images'):
        try:
            image = read_image(path)
            prepared = task.prepare(image)
        except BrokenImage as error:
            print(on_one_line(f'{path} is skipped, it cannot be read as an image: {error}'), file=sys.stderr)
            broken.append(path)
        else:
            yield path, image, prepared
