"""Detection, segmentation and classification: the OpenMMLab inferencers, and what is drawn and saved."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Optional

import cv2
import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import default_collate, pseudo_collate
from mmengine.registry import FUNCTIONS, Registry, init_default_scope
from mmengine.structures import PixelData
from torch import nn

from mmsoft.checkpoint.load import check_model, use_safe_loading
from mmsoft.layers.maps import best_class
from mmsoft.utils import UsageError
from mmsoft.utils.config import datasets, dicts, explained, type_name


class Task:
    """A model in the inferencer of its library, with methods that draw and save its predictions.

    A subclass defines ``library``, the class of the inferencer; ``draw(image, sample, path)``, which saves an RGB image
    with a prediction; and ``encode(sample)``, the content of a prediction's file, whose name ends with ``suffix``.
    """

    library: str
    suffix = '.json'
    collate = staticmethod(pseudo_collate)

    def __init__(self, cfg: Config, checkpoint: str, device: Optional[str], score_thr: float) -> None:
        package, name = self.library.rsplit('.', 1)
        inferencer = getattr(import_module(package), name)
        scope = package.partition('.')[0]
        if scope not in FUNCTIONS.children:  # mmengine would warn that it takes its own registry
            Registry(FUNCTIONS.name, parent=FUNCTIONS, scope=scope, locations=[package])
        self.inferencer = inferencer(cfg, checkpoint, device=device)
        self.score_thr = score_thr

    def prepare(self, image: np.ndarray) -> dict:
        """Runs the config's pipeline on a BGR image (H, W, 3) of uint8; ``inputs`` of the result is (3, H', W')."""
        return self.inferencer.pipeline(dict(img=image, img_shape=image.shape[:2], ori_shape=image.shape[:2]))

    def forward(self, prepared: dict) -> Any:
        """Predicts a prepared image; returns the library's data sample."""
        return self.inferencer.forward(self.collate([prepared]))[0]


class Detection(Task):
    """Predictions are mmdet's: boxes x1, y1, x2, y2, scores, labels, run-length masks; also those not drawn."""

    library = 'mmdet.apis.DetInferencer'

    def draw(self, image: np.ndarray, sample: Any, path: Path) -> None:
        visualizer, found = self.inferencer.visualizer, sample.get('pred_panoptic_seg')
        if found is not None and (found.sem_seg == len(visualizer.dataset_meta['classes'])).all():
            del sample.pred_panoptic_seg  # mmdet cannot draw a map without a segment
        options = dict(draw_gt=False, pred_score_thr=self.score_thr, out_file=str(path))
        visualizer.add_datasample(path.name, image, sample, **options)

    def encode(self, sample: Any) -> bytes:
        return json.dumps(self.inferencer.pred2dict(sample), default=np.ndarray.tolist).encode()  # for panoptic maps


class Segmentation(Task):
    """Predictions are PNG files of class indices."""

    library, suffix = 'mmseg.apis.MMSegInferencer', '.png'

    @torch.no_grad()
    def forward(self, prepared: dict) -> Any:
        if getattr(model := self.inferencer.model, 'out_channels', 1) > 1:
            return predict_labels(model, self.collate([prepared]))[0]
        return super().forward(prepared)

    def draw(self, image: np.ndarray, sample: Any, path: Path) -> None:
        visualizer, labels = self.inferencer.visualizer, sample.pred_sem_seg.data[0].long().cpu().numpy()
        colours = self.inferencer.model.dataset_meta['palette'] or visualizer.dataset_meta['palette']
        drawn = np.array(colours, np.uint8)[labels % len(colours)]
        drawn = cv2.addWeighted(image, 1 - visualizer.alpha, drawn, visualizer.alpha, 0)  # mmseg takes 72 bytes a pixel
        mmcv.imwrite(drawn[..., ::-1], str(path))

    def encode(self, sample: Any) -> bytes:
        labels, model = sample.pred_sem_seg.data[0].cpu().numpy(), self.inferencer.model
        count = max(len(model.dataset_meta.get('classes') or ()), getattr(model, 'num_classes', 0))
        return cv2.imencode('.png', labels.astype(np.uint8 if count <= 256 else np.uint16))[1].tobytes()


def predict_labels(model: nn.Module, data: dict) -> list:
    """mmseg's ``model.test_step(data)`` without ``seg_logits``, which are never held for a whole large image.

    ``model`` is an ``EncoderDecoder`` of two classes or more. Labels (1, H, W) of int64, in the images' original size,
    equal mmseg's pixel by pixel, including ties. With ``mode='slide'``, mmseg holds all scores at the input's size.
    """
    data = model.data_preprocessor(data)
    samples = data['data_samples']
    for scores, sample in zip(model.inference(data['inputs'], [one.metainfo for one in samples]), samples):
        left, right, top, bottom = sample.get('img_padding_size', sample.get('padding_size', (0,) * 4))
        scores = scores[:, top : scores.size(1) - bottom, left : scores.size(2) - right]
        labels = best_class(scores, sample.ori_shape, model.align_corners)
        sample.set_data(dict(pred_sem_seg=PixelData(data=labels[None])))
    return samples


class Classification(Task):
    """Predictions are mmpretrain's: the scores of all classes, and the best class."""

    library = 'mmpretrain.apis.ImageClassificationInferencer'
    collate = staticmethod(default_collate)

    def draw(self, image: np.ndarray, sample: Any, path: Path) -> None:
        options = dict(classes=self.inferencer.classes, draw_gt=False, name=path.name, out_file=str(path))
        import_module('mmpretrain.visualization').UniversalVisualizer().visualize_cls(image, sample, **options)

    def encode(self, sample: Any) -> bytes:
        (found,) = self.inferencer.postprocess([sample], [])
        return json.dumps(found, default=lambda array: array.tolist()).encode()


TASKS = dict(mmdet=Detection, mmseg=Segmentation, mmpretrain=Classification)
OTHERS = dict(  # what the tools do not draw, by the class of a model or head
    DepthEstimator='depth: use mmseg.apis.MMSegInferencer',
    ImageToImageRetriever='matches: use mmpretrain.apis.ImageRetrievalInferencer',
    MultiTaskHead='several tasks: use mmpretrain.apis.ImageClassificationInferencer with return_datasamples=True',
)


def build_task(cfg: Config, checkpoint: str, device: Optional[str] = None, score_thr: float = 0.0) -> Task:
    """Builds the :class:`Task` of a config. From then on, mmengine reads checkpoints, also published ones, safely.

    ``device`` defaults to the best available. Detections with scores below ``score_thr`` are not drawn. UsageError if
    something is missing or cannot be built, or if the weights do not fit the model.
    """
    use_safe_loading()
    try:
        torch.zeros(1, device=device or 'cpu').item()
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f'--device {device} cannot be used here: {str(error).splitlines()[0]}') from error
    init_default_scope(cfg.default_scope)  # mmpretrain's inferencer would keep an earlier one
    with explained(str(cfg.filename or 'The config')):
        for step in dicts(cfg.get('test_dataloader')):  # inferencers look for these names, not for classes
            if (name := type_name(step)) in ('LoadImageFromFile', 'LoadAnnotations', 'LoadDepthAnnotation'):
                step['type'] = name
        if cfg.get('test_dataloader'):  # inferencers need the pipeline of a data set, not what repeats or combines it
            cfg.test_dataloader.dataset = next(datasets(cfg, 'test_dataloader'))
        task = TASKS[cfg.default_scope](cfg, checkpoint, device, score_thr)
        for part in (task.inferencer.model, getattr(task.inferencer.model, 'head', None)):
            if what := OTHERS.get(type(part).__name__):
                raise UsageError(f'The tools do not draw and export {what}.')
        check_model(task.inferencer.model, checkpoint)
    return task
