"""From pictures to predictions."""
import sys
from contextlib import contextmanager
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Tuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from rich.progress import Progress

from mmsoft.checkpoint import check_model
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config
from mmsoft.utils.errors import on_one_line
from mmsoft.utils.files import whole_or_none
from ..deployment.formats import is_exported
from ..preflight import check_checkpoint
from ..work_dir import room_in
from .images import SUFFIXES, find_images, label_names, read_image
from .task import Task

TASKS = dict(mmdet='detection.Detection', mmseg='segmentation.Segmentation', mmpretrain='classification.Classification')


def predict(config: str,
            checkpoint: str,
            source: str,
            out_dir: str,
            device: Optional[str] = None,
            batch_size: int = 1,
            score_thr: float = 0.3,
            opacity: Optional[float] = None,
            palette: Optional[str] = None,
            save_pred: bool = False,
            slide: bool = False) -> List[Path]:
    """Draws predictions as ``OUT_DIR/vis/…``, named like the pictures, and optionally saves them in ``OUT_DIR/preds``.

    A picture's result does not depend on ``batch_size``: only pictures of one shape share a batch.

    Args:
        config (str): Config of a detector, segmenter or classifier.
        checkpoint (str): Its weights, or a file that ``tools/export.py`` made of them, which runs on the CPU.
        source (str): A picture, or a folder of them.
        out_dir (str): Where the results go; nothing that is already there is overwritten.
        device (str, optional): ``'cpu'``, ``'cuda:0'``, …; the best there is by default.
        batch_size (int): Most pictures to predict at once.
        score_thr (float): Detections that are less sure are not drawn.
        opacity (float, optional): Of masks, label maps and boxes; the host's by default.
        palette (str, optional): Name of a palette of the host's; the model's by default.
        save_pred (bool): Whether to save predictions as files that programs read, see :class:`Detection`,
            :class:`Segmentation` and :class:`Classification`.
        slide (bool): Slide a segmenter's window over the pictures at their own size, whatever the config resizes
            them to, see :func:`sliding`; for slides and aerial photographs.

    Returns:
        list[Path]: Pictures that cannot be predicted, which were named and skipped.

    Raises:
        UsageError: If files are missing, results are in the way or options do not fit.
    """
    if batch_size < 1 or not 0 <= (opacity or 0) <= 1:
        raise UsageError('--batch-size is 1 or more, and --opacity between 0 and 1.')
    out_dir = Path(out_dir)
    if not is_exported(checkpoint):
        check_checkpoint(checkpoint)
    cfg = load_config(config)
    if slide:
        if cfg.default_scope != 'mmseg':
            raise UsageError(f'--slide is for semantic segmentation, which {config} is not.')
        cfg = import_module(f'{__package__}.segmentation').sliding(cfg)
    images = find_images(Path(source), out_dir)
    root = Path(source) if Path(source).is_dir() else Path(source).parent
    names = {path: path.relative_to(root) for path in images}
    if images == [Path(source)] and images[0].suffix.lower() not in SUFFIXES:  # which no drawing can be saved as
        names = {images[0]: Path(f'{images[0].name}.png')}
    labels = label_names(list(names.values()))
    folder = out_dir / 'preds' if save_pred else None
    for path in [*(out_dir / 'vis' / name for name in names.values()), *filter(None, [folder])]:
        if path.exists():
            raise UsageError(f'{path} exists and is not overwritten; move it away or choose another --out-dir.')
    check_device(device)
    task = build_task(cfg, checkpoint, device, palette, opacity, score_thr)

    broken = []
    with room_in(out_dir, 'make room or choose another --out-dir'):
        try:
            with Progress() as task.progress:
                for path, image, sample in _predictions(task, images, batch_size, broken):
                    drawn = out_dir / 'vis' / names[path]
                    with _skipping(path, 'its prediction cannot be drawn', broken), whole_or_none(drawn):
                        task.draw(image[..., ::-1].copy(), sample, drawn)
                        if folder:
                            task.record(names[path], labels[names[path]], sample, folder)
        finally:  # after Ctrl-C too, whatever is done is saved
            if folder:
                task.save(folder)
    return broken


def _predictions(task: Task, images: List[Path], batch_size: int,
                 broken: List[Path]) -> Iterator[Tuple[Path, np.ndarray, object]]:
    batch: List[Tuple[Path, np.ndarray, dict]] = []

    def predicted():
        for _, same in groupby(batch, key=lambda item: item[2]['inputs'].shape):
            paths, pictures, prepared = zip(*same)
            samples = []
            try:
                samples = task.forward(list(prepared))
            except Exception:  # one of them, or too many at once
                for path, one in zip(paths, prepared):
                    samples.append(None)
                    with _skipping(path, 'the model refuses it', broken):
                        samples[-1:] = task.forward([one])
            yield from (item for item in zip(paths, pictures, samples) if item[2] is not None)
        batch.clear()

    for item in prepare(task, task.progress.track(images, description='Predicting'), broken):
        batch.append(item)
        if len(batch) == batch_size:
            yield from predicted()
    yield from predicted()


def prepare(task: Task, images: Iterable[Path], broken: List[Path]) -> Iterator[Tuple[Path, np.ndarray, dict]]:
    """Reads pictures and runs a config's pipeline on them; those that are refused are told of and put into ``broken``.

    Yields:
        tuple[Path, np.ndarray, dict]: The path, the BGR picture, and what :meth:`Task.prepare` makes of it.
    """
    for path in images:
        prepared = []
        with _skipping(path, 'it cannot be read as an image', broken):
            image = read_image(path)
            with _skipping(path, 'the pipeline of the config refuses it', broken):
                prepared.append((path, image, task.prepare(image)))
        yield from prepared


@contextmanager
def _skipping(path: Path, why: str, broken: List[Path]) -> Iterator[None]:
    """Names a picture with which something is wrong, whatever it is; the others go on, unless the disk does not."""
    try:
        yield
    except OSError:  # of writing: reading raises BrokenImage
        raise
    except Exception as error:
        print(on_one_line(f'{path} is skipped, {why}: {str(error) or type(error).__name__}'), file=sys.stderr)
        broken.append(path)


def build_task(cfg: Config, checkpoint: str, *options) -> Task:
    """The :class:`Task` of a config, with its options, of a checkpoint or an exported file that is its model's.

    Raises:
        UsageError: If it is not.
    """
    module, name = TASKS[cfg.default_scope].split('.')
    init_default_scope(cfg.default_scope)  # mmpretrain's inferencer leaves the one of an earlier prediction
    make = getattr(import_module(f'{__package__}.{module}'), name)
    if is_exported(checkpoint):
        return import_module(f'{__package__}.exported').exported_task(make, cfg, checkpoint, *options)
    task = make(cfg, checkpoint, *options)
    check_model(task.inferencer.model, checkpoint)
    return task


def check_device(device: Optional[str]) -> None:
    """Raises a :class:`UsageError` if there is no such device here."""
    try:
        torch.empty(0, device=device or 'cpu')
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f'--device {device} cannot be used here: {str(error).splitlines()[0]}') from error
