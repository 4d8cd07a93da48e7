"""Semantic segmentation: drawn by mmseg, and as label maps."""
import copy
from pathlib import Path
from typing import Iterator, List, Optional

import numpy as np
import torch
from mmengine.config import Config
from mmseg.apis import MMSegInferencer
from mmseg.models import EncoderDecoder
from mmseg.structures import SegDataSample
from mmseg.utils import get_palette
from PIL import Image

from mmsoft.utils import UsageError
from mmsoft.utils.config import type_name
from mmsoft.utils.files import whole_or_none
from mmsoft.visualization.label_map import LabelMapVisualizer
from .label_maps import predict_labels
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
        self.visualizer = LabelMapVisualizer(alpha=self.inferencer.visualizer.alpha if opacity is None else opacity)
        self.visualizer.set_dataset_meta(classes=self.classes, palette=colours[:len(self.classes)])

    @torch.no_grad()
    def forward(self, prepared: List[dict]) -> List[SegDataSample]:
        model = self.inferencer.model
        if isinstance(model, EncoderDecoder) and model.out_channels > 1:
            return predict_labels(model, self.collate(prepared), self._windows)
        return super().forward(prepared)

    def _windows(self, windows: list) -> Iterator[tuple]:
        """Shows which window is at work, beneath which picture is."""
        bar = self.progress.add_task('Windows', total=len(windows))
        yield from self.progress.track(windows, task_id=bar)
        self.progress.remove_task(bar)

    def draw(self, image: np.ndarray, sample: SegDataSample, path: Path) -> None:
        self.visualizer.add_datasample(path.name, image, sample, draw_gt=False, out_file=str(path))

    def record(self, name: Path, label_name: Path, sample: SegDataSample, folder: Path) -> None:
        labels = sample.pred_sem_seg.data[0].cpu().numpy()
        path = folder / label_name
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_or_none(path):
            Image.fromarray(labels.astype(np.uint8 if len(self.classes) <= 256 else np.uint16)).save(path)

    def save(self, folder: Path) -> None:
        dump(self.classes, folder / 'classes.json')


def _palette(name: str) -> list:
    try:
        return get_palette(name)
    except ValueError as error:
        raise UsageError(f'--palette {name} is no data set that mmseg has colours for, such as ade20k, cityscapes or '
                         'voc.') from error


def sliding(cfg: Config) -> Config:
    """The config of a segmenter that slides over pictures at their own size, by windows as large as in training.

    Windows that the config has already stay as they are; a third of one overlaps with the next one.
    """
    cfg = copy.deepcopy(cfg)
    if cfg.model.test_cfg.get('mode') != 'slide':
        size = cfg.get('crop_size', (512, 512))
        cfg.model.test_cfg.update(mode='slide', crop_size=size, stride=tuple(side * 2 // 3 for side in size))
    pipeline = cfg.test_dataloader.dataset.pipeline
    cfg.test_dataloader.dataset.pipeline = [step for step in pipeline if 'Resize' not in type_name(step)]
    return cfg
