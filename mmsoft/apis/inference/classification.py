"""Classes: drawn by mmpretrain, and as a list of the most probable ones."""
from pathlib import Path
from typing import Optional

import numpy as np
from mmengine.config import Config
from mmengine.dataset import default_collate
from mmpretrain.apis import ImageClassificationInferencer
from mmpretrain.structures import DataSample
from mmpretrain.visualization import UniversalVisualizer

from .task import Entries, Task

TOP = 5
LONGEST = 32
"""Sides of a square, of a picture that is longer: pipelines make the short side fit, and the long one fill the memory."""


class Classification(Task):
    """A classifier. ``predictions.json`` has the five most probable classes of each picture; palettes play no part."""

    collate = staticmethod(default_collate)

    def __init__(self, cfg: Config, checkpoint: str, device: Optional[str], palette: Optional[str],
                 opacity: Optional[float], score_thr: float) -> None:
        self.inferencer = ImageClassificationInferencer(cfg, checkpoint, device)
        self.visualizer = UniversalVisualizer()
        self.results = Entries()

    def prepare(self, image: np.ndarray) -> dict:
        height, width = image.shape[:2]
        most = LONGEST * min(height, width)
        top, left = max(0, height - most) // 2, max(0, width - most) // 2
        return super().prepare(image[top:top + most, left:left + most])  # classifiers look at the middle anyway

    def draw(self, image: np.ndarray, sample: DataSample, path: Path) -> None:
        self.visualizer.visualize_cls(
            image, sample, classes=self.inferencer.classes, draw_gt=False, name=path.name, out_file=str(path))

    def record(self, name: Path, label_name: Path, sample: DataSample, folder: Path) -> None:
        scores, labels = sample.pred_score.cpu().topk(min(TOP, sample.pred_score.numel()))
        classes = self.inferencer.classes
        top = [
            dict(label=label, score=score, **(dict(name=classes[label]) if classes else {}))
            for label, score in zip(labels.tolist(), scores.tolist())
        ]
        self.results.add([dict(file_name=name.as_posix(), classes=top)], folder)

    def save(self, folder: Path) -> None:
        self.results.dump(folder / 'predictions.json')
