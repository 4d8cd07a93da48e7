"""A detector in one graph: boxes decoded and overlaps suppressed, in steps of fixed length that any runtime knows.

Where mmdet drops what is below a threshold, a graph marks it with a negative score, and drops all of it before the one
operator whose output has any length, non-maximum suppression.
"""
from functools import partial
from itertools import count
from typing import Callable, Sequence, Tuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from mmdet.models import CascadeRoIHead, RPNHead, SingleStageDetector, StandardRoIHead, TwoStageDetector
from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torchvision.ops import nms

from mmsoft.utils import UsageError

Found = Tuple[Tensor, Tensor, Tensor]
UNCLIPPED = dict(img_shape=None)
"""What mmdet is told of an image, so that it leaves clipping to us: a graph knows the size only when it runs."""


class Detections(nn.Module):
    """A detector from one image to what is in it.

    Args:
        model (nn.Module): A detector of mmdet: with one dense head, or Faster, Mask or Cascade R-CNN. It is changed.

    Raises:
        UsageError: If it is another.
    """

    inputs: Tuple[str, ...] = ('images', 'image_size')

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        one_stage = isinstance(model, SingleStageDetector)
        self.model, self.roi = model, None if one_stage else getattr(model, 'roi_head', None)
        self.dense = getattr(model, 'bbox_head' if one_stage else 'rpn_head', None)
        two_stages = (isinstance(model, TwoStageDetector) and isinstance(self.dense, RPNHead)
                      and type(self.roi) in (StandardRoIHead, CascadeRoIHead))
        if not two_stages and not (one_stage and 'filter_scores_and_topk' in _single(self.dense).__globals__):
            raise UsageError(f'{type(model).__name__} is not exported: of detectors, those with one dense head are, '
                             'and Faster, Mask and Cascade R-CNN.')
        for part in (self.dense, self.roi):
            if part is not None and part.test_cfg.nms.get('type', 'nms') != 'nms':
                raise UsageError(f'{part.test_cfg.nms.type} is not exported: choose nms in test_cfg.')
        masks = self.roi is not None and self.roi.with_mask
        self.outputs = ('boxes', 'scores', 'labels', *(['masks'] if masks else []))
        self.least_side = 1 + max(map(max, self.dense.prior_generator.strides))
        for module in model.modules():
            if isinstance(module, SingleRoIExtractor):
                module.forward = partial(_pool, module)

    def forward(self, images: Tensor, image_size: Tensor) -> Tuple[Tensor, ...]:
        """Finds objects.

        Args:
            images (Tensor): One normalised image, zeros at its right and bottom, shape (1, 3, H, W).
            image_size (Tensor): Its rows and columns without those zeros, shape (2, ) of int64.

        Returns:
            tuple[Tensor]: Boxes (n, 4) as x1, y1, x2, y2 in pixels of the image, scores (n, ) and labels (n, ), best
            first, filled up with scores of 0 to as many as the config allows; and, if the detector has masks, their
            probabilities (n, h, w) inside of the boxes.
        """
        limit = image_size.to(images.dtype).flip(0).repeat(2)
        maps = self.model.extract_feat(images)
        found = _dense(self.dense, maps, limit)
        if self.roi is None:
            return found
        found = _refine(self.roi, maps, found, limit)
        return (*found, _masks(self.roi, maps, found)) if self.roi.with_mask else found


def _single(head: BaseDenseHead) -> Callable:
    """How a head reads its maps of one image; the RPN's own way is the general one, with decisions that graphs lack."""
    return (BaseDenseHead if isinstance(head, RPNHead) else type(head))._predict_by_feat_single


def _dense(head: BaseDenseHead, maps: Sequence[Tensor], limit: Tensor) -> Found:
    """What a dense head finds, by mmdet's code but for the choice of candidates and what follows on decoding."""
    levels = count()

    def choose(scores: Tensor, score_thr: float, topk: int, results: dict) -> tuple:
        best, index = F.pad(scores.flatten(), (0, topk), value=-1.).topk(topk)
        index = index.clamp(max=scores.numel() - 1)
        labels = torch.full_like(index, next(levels)) if isinstance(head, RPNHead) else index % scores.size(1)
        index = index // scores.size(1)
        return best.masked_fill(best <= score_thr, -1.), labels, index, {k: v[index] for k, v in results.items()}

    def finish(results: InstanceData, cfg: ConfigDict, **kwargs) -> Found:
        return _suppress(results.bboxes, results.scores * results.get('score_factors', 1), results.labels, limit, cfg)

    single = _single(head)
    with patch.dict(single.__globals__, filter_scores_and_topk=choose), patch.object(
            head, '_predict_by_feat_single', partial(single, head)), patch.object(head, '_bbox_post_process', finish):
        found, = head.predict_by_feat(*head(maps), batch_img_metas=[UNCLIPPED])
    return found


def _refine(head: StandardRoIHead, maps: Sequence[Tensor], proposals: Found, limit: Tensor) -> Found:
    """What one or several stages make of the proposals."""
    boxes, objectness, _ = proposals
    stages = list(head.bbox_head) if isinstance(head, CascadeRoIHead) else [head.bbox_head]
    logits = 0
    for i, stage in enumerate(stages):
        if i:
            boxes = _clip(stages[i - 1].regress_by_class(boxes, scores[:, :-1].argmax(1), deltas, UNCLIPPED), limit)
        results = head._bbox_forward(*_of_stage(head, i), maps, F.pad(boxes, (1, 0)))
        scores, deltas = results['cls_score'], results['bbox_pred']
        logits = logits + scores
    scores = (logits / len(stages)).softmax(-1)[:, :-1] * (objectness > 0)[:, None]
    boxes = stage.bbox_coder.decode(boxes, deltas).reshape(scores.size(0), -1, 4).expand(-1, scores.size(1), -1)
    labels = torch.arange(scores.size(1), device=boxes.device).expand_as(scores)
    return _suppress(boxes.flatten(0, 1), scores.flatten(), labels.flatten(), limit, head.test_cfg)


def _masks(head: StandardRoIHead, maps: Sequence[Tensor], found: Found) -> Tensor:
    boxes, _, labels = found
    stages = range(head.num_stages) if isinstance(head, CascadeRoIHead) else [0]
    rois = F.pad(boxes, (1, 0))
    masks = sum(head._mask_forward(*_of_stage(head, i), maps, rois)['mask_preds'].sigmoid() for i in stages)
    masks = masks / len(stages)
    if masks.size(1) == 1:
        return masks[:, 0]
    return masks[torch.arange(masks.size(0), device=masks.device), labels]


def _of_stage(head: StandardRoIHead, stage: int) -> Tuple[int, ...]:
    return (stage, ) if isinstance(head, CascadeRoIHead) else ()


def _pool(extractor: SingleRoIExtractor, maps: Sequence[Tensor], rois: Tensor, roi_scale_factor=None) -> Tensor:
    """Features of regions (n, 5), each from the map that fits it; the other maps see one without extent: zeros."""
    level = extractor.map_roi_levels(rois, len(maps))[:, None]
    pooled = []
    for i, (layer, x) in enumerate(zip(extractor.roi_layers, maps)):
        layer.use_torchvision = True  # ONNX has its operator, and not mmcv's
        pooled.append(layer(x, rois * (level == i)))
    return sum(pooled)


def _clip(boxes: Tensor, limit: Tensor) -> Tensor:
    return torch.minimum(boxes.clamp(min=0), limit)


def _suppress(boxes: Tensor, scores: Tensor, labels: Tensor, limit: Tensor, cfg: ConfigDict) -> Found:
    """The best boxes of those that overlap, among equals in label: ``cfg.max_per_img`` of them, or zeros instead."""
    boxes, least, most = _clip(boxes, limit), cfg.get('min_bbox_size', -1), cfg.max_per_img
    sides = boxes[:, 2:] - boxes[:, :2]
    inside = (scores > cfg.get('score_thr', 0)) & (sides > least).all(1)
    # Two boxes of zeros in front, for those that are missing: nothing suppresses them, and torch.export takes it as given
    # that two or more are kept.
    boxes, scores, labels = (F.pad(t[inside], (0, 0) * (t.dim() - 1) + (2, 0)) for t in (boxes, scores, labels))
    apart = boxes if cfg.nms.get('class_agnostic') else boxes + (labels * (boxes.max() + 1))[:, None]
    kept = F.pad(nms(apart, scores, cfg.nms.iou_threshold), (0, most))[:most]
    return boxes[kept], scores[kept], labels[kept]
