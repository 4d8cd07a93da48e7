"""Boxes and instance masks: drawn by mmdet, and as COCO results."""
from pathlib import Path
from typing import Optional

import numpy as np
from mmdet.apis import DetInferencer
from mmdet.structures import DetDataSample
from mmdet.structures.mask import encode_mask_results
from mmengine.config import Config

from mmsoft.utils import UsageError
from .task import Entries, Task, dump

PALETTES = ('coco', 'voc', 'citys', 'random')


class Detection(Task):
    """A detector.

    ``predictions.json`` is a list of COCO results, masks run-length encoded, for ``images.json``, a COCO data set
    without annotations: ``COCO('images.json').loadRes('predictions.json')``. Every detection that the config's
    ``test_cfg`` lets pass is in it, not only those that are drawn.
    """

    def __init__(self, cfg: Config, checkpoint: str, device: Optional[str], palette: Optional[str],
                 opacity: Optional[float], score_thr: float) -> None:
        if palette not in (None, *PALETTES):
            raise UsageError(f'--palette {palette} is none of those for detection: {", ".join(PALETTES)}.')
        self.inferencer = DetInferencer(cfg, checkpoint, device, palette=palette or 'none', show_progress=False)
        if opacity is not None:
            self.inferencer.visualizer.alpha = opacity
        self.score_thr = score_thr
        self.images, self.results = [], Entries()

    def draw(self, image: np.ndarray, sample: DetDataSample, path: Path) -> None:
        self.inferencer.visualizer.add_datasample(
            path.name, image, sample, draw_gt=False, pred_score_thr=self.score_thr, out_file=str(path))

    def record(self, name: Path, label_name: Path, sample: DetDataSample, folder: Path) -> None:
        image_id = len(self.images) + 1
        height, width = sample.ori_shape
        self.images.append(dict(id=image_id, file_name=name.as_posix(), height=height, width=width))
        found = sample.pred_instances.cpu().numpy()
        corners = found.bboxes.astype(float)
        boxes = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]]).round(3)
        results = [
            dict(image_id=image_id, category_id=label + 1, bbox=box, score=score)
            for box, label, score in zip(boxes.tolist(), found.labels.tolist(), found.scores.tolist())
        ]
        if 'masks' in found:
            for result, mask in zip(results, encode_mask_results(found.masks)):
                result['segmentation'] = dict(mask, counts=mask['counts'].decode())
        self.results.add(results, folder)

    def save(self, folder: Path) -> None:
        classes = self.inferencer.model.dataset_meta['classes']
        categories = [dict(id=index, name=name) for index, name in enumerate(classes, 1)]
        dump(dict(images=self.images, categories=categories, annotations=[]), folder / 'images.json')
        self.results.dump(folder / 'predictions.json')
