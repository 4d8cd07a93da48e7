"""Semantic segmentation: drawn by mmseg, and as label maps."""
from pathlib import Path
from typing import Optional

import numpy as np
from mmengine.config import Config
from mmseg.apis import MMSegInferencer
from mmseg.structures import SegDataSample
from mmseg.utils import get_palette
from PIL import Image

from mmsoft.utils import UsageError
from .task import Task, dump


class Segmentation(Task):
    """A segmenter. Label maps are PNG files of class indices; ``classes.json`` has the classes' names."""

    def __init__(self, cfg: Config, checkpoint: str, device: Optional[str], palette: Optional[str],
                 opacity: Optional[float], score_thr: float) -> None:
        colours = _palette(palette) if palette else None
        self.inferencer = MMSegInferencer(cfg, checkpoint, device=device)
        self.classes = list(self.inferencer.model.dataset_meta['classes'])
        if colours and len(colours) < len(self.classes):
            raise UsageError(f'--palette {palette} has {len(colours)} colours for {len(self.classes)} classes; leave '
                             'it out to take those of the model.')
        colours = colours or self.inferencer.model.dataset_meta['palette']
        self.inferencer.visualizer.set_dataset_meta(classes=self.classes, palette=colours[:len(self.classes)])
        if opacity is not None:
            self.inferencer.visualizer.alpha = opacity

    def draw(self, image: np.ndarray, sample: SegDataSample, path: Path) -> None:
        self.inferencer.visualizer.add_datasample(path.name, image, sample, draw_gt=False, out_file=str(path))

    def record(self, name: Path, label_name: Path, sample: SegDataSample, folder: Path) -> None:
        labels = sample.pred_sem_seg.data[0].cpu().numpy()
        path = folder / label_name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(labels.astype(np.uint8 if len(self.classes) <= 256 else np.uint16)).save(path)

    def save(self, folder: Path) -> None:
        dump(self.classes, folder / 'classes.json')


def _palette(name: str) -> list:
    try:
        return get_palette(name)
    except ValueError as error:
        raise UsageError(f'--palette {name} is no data set that mmseg has colours for, such as ade20k, cityscapes or '
                         'voc.') from error
