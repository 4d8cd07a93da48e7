"""Detection, segmentation and classification: the OpenMMLab inferencers, and what becomes of their predictions."""
import json
from pathlib import Path
from typing import Any, List, Optional, Sequence

import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import default_collate, pseudo_collate
from mmengine.registry import init_default_scope
from PIL import Image

from mmsoft.checkpoint import check_model
from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write, whole_or_none
from mmsoft.visualization import draw_label_map
from ..preflight import check_checkpoint
from .images import BrokenImage
from .label_maps import predict_labels


class Task:
    """A model behind the inferencer of its library, and how its predictions are drawn and saved.

    A subclass defines ``load(cfg, checkpoint, device)``, which makes the inferencer; ``draw(image, sample, path)``, which
    saves an RGB image with a prediction; and ``record(name, sample, label_map)``, which keeps a prediction in
    ``entries`` as JSON, or writes it to the file ``label_map``.

    Args:
        cfg (Config): Config of the model.
        checkpoint (str): Its weights.
        device (str, optional): Defaults to None, the best there is.
        palette (str, optional): Name of a palette of the library. Defaults to None: the model's.
        opacity (float, optional): Of what is drawn. Defaults to None: the library's.
        score_thr (float): Detections with a lower score are not drawn.
    """

    collate = staticmethod(pseudo_collate)
    max_ratio = 1000
    """Of an image's sides: pipelines that keep the ratio would shrink the shorter one to nothing."""

    def __init__(self, cfg: Config, checkpoint: str, device: Optional[str] = None, palette: Optional[str] = None,
                 opacity: Optional[float] = None, score_thr: float = 0.) -> None:
        self.palette, self.opacity, self.score_thr = palette, opacity, score_thr
        self.images: List[dict] = []
        self.entries: List[str] = []
        self.inferencer = self.load(cfg, checkpoint, device)

    def prepare(self, image: np.ndarray) -> dict:
        """Runs the config's pipeline on a BGR image (H, W, 3) of uint8; ``inputs`` of the result is (3, H', W').

        Raises:
            BrokenImage: If the image is too narrow.
        """
        height, width = shape = image.shape[:2]
        if max(shape) > self.max_ratio * min(shape):
            raise BrokenImage(f'{width}x{height} pixels are too narrow')
        return self.inferencer.pipeline(dict(img=image, img_shape=shape, ori_shape=shape))

    def forward(self, prepared: List[dict]) -> Sequence[Any]:
        """Prepared images of one shape to the library's data samples."""
        return self.inferencer.forward(self.collate(prepared))

    def save(self, folder: Path) -> None:
        """Writes ``predictions.json``, a line for each entry."""
        write(folder / 'predictions.json', '[{}]'.format(',\n'.join(self.entries)))


class Detection(Task):
    """``predictions.json`` are COCO results, masks run-length encoded, for ``images.json``, a COCO data set without
    annotations: ``COCO('images.json').loadRes('predictions.json')``. They hold all detections that the config's
    ``test_cfg`` lets pass, not only those that are drawn."""

    def load(self, cfg: Config, checkpoint: str, device: Optional[str]) -> Any:
        from mmdet.apis import DetInferencer
        palettes = (None, 'coco', 'voc', 'citys', 'random')
        if self.palette not in palettes:
            raise UsageError(f'There is no --palette {self.palette} for detection; choose from '
                             f'{", ".join(palettes[1:])}.')
        inferencer = DetInferencer(cfg, checkpoint, device, palette=self.palette or 'none', show_progress=False)
        if self.opacity is not None:
            inferencer.visualizer.alpha = self.opacity
        return inferencer

    def draw(self, image: np.ndarray, sample: Any, path: Path) -> None:
        self.inferencer.visualizer.add_datasample(
            path.name, image, sample, draw_gt=False, pred_score_thr=self.score_thr, out_file=str(path))

    def record(self, name: Path, sample: Any, label_map: Path) -> None:
        from mmdet.structures.mask import encode_mask_results
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
        self.entries += map(json.dumps, results)

    def save(self, folder: Path) -> None:
        classes = self.inferencer.model.dataset_meta['classes']
        categories = [dict(id=index, name=name) for index, name in enumerate(classes, 1)]
        write(folder / 'images.json', json.dumps(dict(images=self.images, categories=categories, annotations=[])))
        super().save(folder)


class Segmentation(Task):
    """Label maps are PNG files of class indices, and ``classes.json`` has the names of the classes."""

    def load(self, cfg: Config, checkpoint: str, device: Optional[str]) -> Any:
        from mmseg.apis import MMSegInferencer
        from mmseg.utils import get_palette
        try:
            colours = get_palette(self.palette) if self.palette else None
        except ValueError as error:
            raise UsageError(f'There is no --palette {self.palette} for segmentation; choose a data set that mmseg '
                             'knows, such as ade20k, cityscapes or voc.') from error
        inferencer = MMSegInferencer(cfg, checkpoint, device=device)
        self.classes = list(inferencer.model.dataset_meta['classes'])
        self.colours = colours or inferencer.model.dataset_meta['palette']
        if len(self.colours) < len(self.classes):
            raise UsageError(f'--palette {self.palette} has {len(self.colours)} colours for {len(self.classes)} '
                             'classes; leave it out to use the colours of the model.')
        if self.opacity is None:
            self.opacity = inferencer.visualizer.alpha
        return inferencer

    @torch.no_grad()
    def forward(self, prepared: List[dict]) -> Sequence[Any]:
        from mmseg.models import EncoderDecoder
        model = self.inferencer.model
        if isinstance(model, EncoderDecoder) and model.out_channels > 1:
            return predict_labels(model, self.collate(prepared))
        return super().forward(prepared)

    def draw(self, image: np.ndarray, sample: Any, path: Path) -> None:
        labels = sample.pred_sem_seg.data[0].cpu().numpy()
        mmcv.imwrite(draw_label_map(image, labels, self.classes, self.colours, self.opacity)[..., ::-1], str(path))

    def record(self, name: Path, sample: Any, label_map: Path) -> None:
        labels = sample.pred_sem_seg.data[0].cpu().numpy()
        label_map.parent.mkdir(parents=True, exist_ok=True)
        with whole_or_none(label_map):
            Image.fromarray(labels.astype(np.uint8 if len(self.classes) <= 256 else np.uint16)).save(label_map)

    def save(self, folder: Path) -> None:
        write(folder / 'classes.json', json.dumps(self.classes))


class Classification(Task):
    """``predictions.json`` has the five most probable classes of each image; palettes and opacity have no effect."""

    collate = staticmethod(default_collate)

    def load(self, cfg: Config, checkpoint: str, device: Optional[str]) -> Any:
        from mmpretrain.apis import ImageClassificationInferencer
        from mmpretrain.visualization import UniversalVisualizer
        self.visualizer = UniversalVisualizer()
        return ImageClassificationInferencer(cfg, checkpoint, device)

    def prepare(self, image: np.ndarray) -> dict:
        """Cuts long images: pipelines enlarge the short side to a fixed length, so that the other fills the memory."""
        height, width = image.shape[:2]
        longest = 32 * min(height, width)
        top, left = max(0, height - longest) // 2, max(0, width - longest) // 2
        return super().prepare(image[top:top + longest, left:left + longest])  # pipelines crop the middle anyway

    def draw(self, image: np.ndarray, sample: Any, path: Path) -> None:
        self.visualizer.visualize_cls(
            image, sample, classes=self.inferencer.classes, draw_gt=False, name=path.name, out_file=str(path))

    def record(self, name: Path, sample: Any, label_map: Path) -> None:
        scores, labels = sample.pred_score.cpu().topk(min(5, sample.pred_score.numel()))
        names = self.inferencer.classes
        top = [dict(label=label, score=score, **(dict(name=names[label]) if names else {}))
               for label, score in zip(labels.tolist(), scores.tolist())]
        self.entries.append(json.dumps(dict(file_name=name.as_posix(), classes=top)))


TASKS = dict(mmdet=Detection, mmseg=Segmentation, mmpretrain=Classification)


def build_task(cfg: Config, checkpoint: str, device: Optional[str] = None, *options) -> Task:
    """The :class:`Task` of a config.

    Raises:
        UsageError: If the checkpoint is missing or not the model's, or there is no such device.
    """
    check_checkpoint(checkpoint)
    try:
        torch.empty(0, device=device or 'cpu')
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f'--device {device} cannot be used here: {str(error).splitlines()[0]}') from error
    init_default_scope(cfg.default_scope)  # mmpretrain's inferencer would keep that of an earlier prediction
    task = TASKS[cfg.default_scope](cfg, checkpoint, device, *options)
    check_model(task.inferencer.model, checkpoint)
    return task


def write(path: Path, text: str) -> None:
    """Writes a file as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode())
