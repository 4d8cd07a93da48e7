"""From images to predictions, drawn and as files that programs read."""

import copy
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Optional

import numpy as np
from mmengine.config import Config
from rich.progress import track

from mmsoft.utils import UsageError, on_one_line
from mmsoft.utils.config import load_config, type_name
from mmsoft.utils.files import whole_or_none

from .images import BrokenImage, check_new, find_images, read_image, result_names
from .tasks import Task, build_task

Prepared = tuple[Path, np.ndarray, dict]


def predict(
    config: str,
    checkpoint: str,
    source: str,
    out_dir: str,
    device: Optional[str] = None,
    batch_size: int = 1,
    score_thr: float = 0.3,
    save_pred: bool = False,
    slide: bool = False,
) -> list[Path]:
    """Draws predictions as ``OUT_DIR/vis/…``, named like the images, and optionally saves them in ``OUT_DIR/preds``.

    An image's result does not depend on ``batch_size``: only images of one shape share a batch.

    Args:
        config, checkpoint (str): Config of a detector, segmenter or classifier, and its weights.
        source (str): An image, or a folder of images.
        out_dir (str): Where the results go, a new or empty folder.
        device (str, optional): ``'cpu'``, ``'cuda:0'``, …. Defaults to None: the best there is.
        batch_size (int): Maximum number of images to predict at once.
        score_thr (float): Detections with a lower score are not drawn.
        save_pred (bool): Whether to save the prediction of each image as a file that programs read, see
            :class:`.tasks.Detection`, :class:`.tasks.Segmentation` and :class:`.tasks.Classification`.
        slide (bool): Slide a segmenter's window over the images at their own size, whatever the config resizes them
            to, see :func:`sliding`; for histological slides and aerial photographs.

    Returns:
        list[Path]: Broken images, which were named and skipped.

    Raises:
        UsageError: If files are missing, ``out_dir`` is not empty or options do not fit.
    """
    if batch_size < 1:
        raise UsageError('--batch-size must be at least 1.')
    out, cfg = Path(out_dir), load_config(config)
    if slide:
        if cfg.default_scope != 'mmseg':
            raise UsageError(f'--slide is for semantic segmentation, which {config} is not.')
        cfg = sliding(cfg)
    names = find_images(source)
    check_new(out_dir)
    task = build_task(cfg, checkpoint, device, score_thr)
    files = result_names(names.values(), task.suffix)

    broken: list[Path] = []
    for path, image, sample in _predictions(task, prepare(task, names, broken), batch_size):
        drawing = out / 'vis' / names[path]
        with whole_or_none(drawing):
            task.draw(image[..., ::-1].copy(), sample, drawing)
        if save_pred:
            task.save(sample, out / 'preds' / files[names[path]])
    print(
        f'Drawings of {len(names) - len(broken)} of {len(names)} images are in {out / "vis"}'
        + (f', predictions in {out / "preds"}.' if save_pred else '.')
    )
    return broken


def sliding(cfg: Config) -> Config:
    """The config of a segmenter that slides over images at their own size, with windows as large as in training.

    Windows that the config has already stay as they are. A third of a window overlaps with the next one.
    """
    cfg = copy.deepcopy(cfg)
    if cfg.model.test_cfg.get('mode') != 'slide':
        size = cfg.get('crop_size', (512, 512))
        cfg.model.test_cfg.update(mode='slide', crop_size=size, stride=tuple(side * 2 // 3 for side in size))
    dataset = cfg.test_dataloader.dataset
    dataset.pipeline = [step for step in dataset.pipeline if 'Resize' not in type_name(step)]
    return cfg


def prepare(task: Task, images: Iterable[Path], broken: list[Path]) -> Iterator[Prepared]:
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


def _predictions(task: Task, images: Iterator[Prepared], count: int) -> Iterator[tuple[Path, np.ndarray, Any]]:
    """Predicts batches of at most ``count`` successive images of one shape."""
    for batch in iter(lambda: [item for _, item in zip(range(count), images)], []):
        for _, same in groupby(batch, key=lambda item: item[2]['inputs'].shape):
            paths, pixels, prepared = zip(*same)
            yield from zip(paths, pixels, task.forward(list(prepared)))
