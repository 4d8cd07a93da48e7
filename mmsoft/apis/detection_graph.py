"""A detector as one graph of tensors: boxes are decoded and suppressed by operators that runtimes know.

The heads' own methods compute scores and offsets; this module chooses candidates. mmdet drops boxes below a threshold,
so lengths depend on values. The graph gives such boxes a score of -1 instead, and drops them all right before
non-maximum suppression, the only operator with an output of variable length.
"""

from collections.abc import Sequence
from typing import Optional

import torch
import torch.nn.functional as F
from mmdet import models
from mmengine.config import ConfigDict
from torch import Tensor, nn
from torchvision.ops import nms, roi_align

from mmsoft.utils import UsageError
from mmsoft.utils.config import type_name

Found = tuple[Tensor, Tensor, Tensor]
DENSE_HEADS = (models.RetinaHead, models.ATSSHead, models.GFLHead)
BOX_HEADS = (models.ConvFCBBoxHead, models.Shared2FCBBoxHead, models.Shared4Conv1FCBBoxHead)
ROI_PARTS = (models.SingleRoIExtractor, models.FCNMaskHead, *BOX_HEADS)


class Detections(nn.Module):
    """A detector that maps one image to its boxes: RetinaNet, ATSS or GFL; Faster, Mask or Cascade R-CNN.

    Raises UsageError for other detectors, or if ``test_cfg`` asks for another kind of suppression than ``nms``.
    """

    inputs: tuple[str, ...] = ('images', 'image_size')

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        two_stages = isinstance(model, models.TwoStageDetector)
        self.model, self.roi = model, model.roi_head if two_stages else None
        self.dense = model.rpn_head if two_stages else getattr(model, 'bbox_head', None)
        if type(self.dense) not in ([models.RPNHead] if two_stages else DENSE_HEADS) or not _is_known(self.roi):
            known = 'RetinaNet, ATSS, GFL, and Faster, Mask and Cascade R-CNN with their usual heads'
            raise UsageError(f'{type(model).__name__} cannot be exported. The detectors that can are {known}.')
        for part in filter(None, (self.dense, self.roi)):
            cfg = part.test_cfg.nms or dict(type='No suppression')
            kind = ' with '.join([type_name(cfg) or 'nms', *cfg.keys() - {'type', 'iou_threshold', 'class_agnostic'}])
            if kind != 'nms':
                raise UsageError(f'{kind} cannot be exported; choose nms in test_cfg, with iou_threshold alone.')
        self.outputs = ('boxes', 'scores', 'labels', *(['masks'] if two_stages and self.roi.with_mask else []))

    def forward(self, images: Tensor, image_size: Tensor) -> tuple[Tensor, ...]:
        """Finds objects in one normalised image (1, 3, H, W), padded with zeros at the right and bottom.

        ``image_size`` (2, ), int64, has its rows and columns without the padding. Returns boxes (n, 4) as x1, y1, x2,
        y2 in pixels of the image, scores (n, ) and labels (n, ), best first, where n is the config's ``max_per_img``
        and missing boxes have a score of 0. If there are masks, also their probabilities (n, h, w) inside the boxes.
        """
        limit = image_size.to(images.dtype).flip(0).repeat(2)
        maps = self.model.extract_feat(images)
        found = find(self.dense, maps, limit)
        boxes, scores, labels = found = refine(self.roi, maps, found, limit) if self.roi else found
        masks = [find_masks(self.roi, maps, found)] if 'masks' in self.outputs else []
        return (boxes, scores.clamp(min=0), labels, *masks)


def _is_known(roi: Optional[nn.Module]) -> bool:
    """Whether a second stage has nothing but the parts that :func:`refine` and :func:`find_masks` compute."""
    parts = [part for child in roi.children() for part in _stages(child)] if roi else []
    return (
        type(roi) in (type(None), models.StandardRoIHead, models.CascadeRoIHead)
        and all(type(part) in ROI_PARTS for part in parts)
        and not any(getattr(part, 'custom_activation', False) for part in parts)
        and all(getattr(layer, 'pool_mode', '') == 'avg' for part in parts for layer in getattr(part, 'roi_layers', ()))
    )


def find(head: models.AnchorHead, maps: Sequence[Tensor], limit: Tensor) -> Found:
    """Finds boxes in one image with one of :data:`DENSE_HEADS`, or with an RPN, whose labels are pyramid levels.

    Takes maps (1, C, H', W') and the limit (W, H, W, H) of the image for boxes. Returns what :func:`suppress` returns.
    """
    cfg, is_rpn = head.test_cfg, isinstance(head, models.RPNHead)
    boxes, scores, labels = [], [], []
    logits, offsets, *factors = head(maps)
    priors = head.prior_generator.grid_priors([x.shape[2:] for x in logits], dtype=limit.dtype, device=limit.device)
    for level, (logit, offset, prior) in enumerate(zip(logits, offsets, priors)):
        logit = logit[0].permute(1, 2, 0).reshape(-1, head.cls_out_channels)
        # A sigmoid by its formula: ONNX Runtime's own is 0 below -16.85, and loses the order of scores.
        score = (1 + (-logit).exp()).reciprocal() if head.use_sigmoid_cls else logit.softmax(-1)[:, :-1]
        offset = offset[0].permute(1, 2, 0)
        if isinstance(head, models.GFLHead):  # a distribution of distances in strides, from the anchors' centres
            offset = head.integral(offset) * head.prior_generator.strides[level][0]
            prior = head.anchor_center(prior)
        best, place = F.pad(score.flatten(), (0, cfg.nms_pre), value=-1.0).topk(cfg.nms_pre)
        dropped = best <= (-1 if is_rpn else cfg.get('score_thr', 0))  # before centerness, as in mmdet
        place = place.clamp(max=score.numel() - 1)
        labels.append(torch.full_like(place, level) if is_rpn else place % score.size(1))
        place = place // score.size(1)
        boxes.append(head.bbox_coder.decode(prior[place], offset.reshape(-1, head.bbox_coder.encode_size)[place]))
        best = best * factors[0][level][0].flatten().sigmoid()[place] if factors else best
        scores.append(best.masked_fill(dropped, -1.0))
    return suppress(torch.cat(boxes), torch.cat(scores), torch.cat(labels), limit, cfg)


def refine(roi: models.StandardRoIHead, maps: Sequence[Tensor], proposals: Found, limit: Tensor) -> Found:
    """Refines an RPN's proposals by the second stage, or by all stages of a cascade."""
    boxes, objectness, _ = proposals
    sum_of_logits = 0
    stages = list(zip(_stages(roi.bbox_roi_extractor), _stages(roi.bbox_head)))
    for i, (extractor, head) in enumerate(stages):
        logits, offsets = head(pool(extractor, maps, boxes))
        sum_of_logits = sum_of_logits + logits
        if i < len(stages) - 1:  # mmdet would clip them to a constant, but the image size is an input here
            boxes = head.regress_by_class(boxes, logits[:, :-1].argmax(1), offsets, dict(img_shape=None))
            boxes = torch.minimum(boxes.clamp(min=0), limit)
    scores = (sum_of_logits / len(stages)).softmax(-1)[:, :-1]
    scores = scores.masked_fill((scores <= roi.test_cfg.score_thr) | (objectness < 0)[:, None], -1.0)
    boxes = head.bbox_coder.decode(boxes, offsets).reshape(scores.size(0), -1, 4).expand(-1, scores.size(1), -1)
    labels = torch.arange(scores.size(1), device=boxes.device).expand_as(scores)
    return suppress(boxes.flatten(0, 1), scores.flatten(), labels.flatten(), limit, roi.test_cfg)


def find_masks(roi: models.StandardRoIHead, maps: Sequence[Tensor], found: Found) -> Tensor:
    """Probabilities (n, h, w) of the masks inside n boxes, averaged over the stages of a cascade."""
    boxes, _, labels = found
    stages = zip(_stages(roi.mask_roi_extractor), _stages(roi.mask_head))
    masks = torch.stack([head(pool(extractor, maps, boxes)).sigmoid() for extractor, head in stages]).mean(0)
    return masks[:, 0] if masks.size(1) == 1 else masks[torch.arange(masks.size(0), device=masks.device), labels]


def pool(extractor: models.SingleRoIExtractor, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
    """Features of boxes (n, 4), each from the map that fits its size: mmcv's RoIAlign with torchvision's operator.

    Every map is pooled for all boxes; boxes of other maps are replaced by an empty box, whose features are zeros.
    """
    rois = F.pad(boxes, (1, 0))  # the number of the image in front
    levels = extractor.map_roi_levels(rois, len(maps))[:, None]
    return sum(
        roi_align(x, rois * (levels == i), layer.output_size, layer.spatial_scale, layer.sampling_ratio, layer.aligned)
        for i, (layer, x) in enumerate(zip(extractor.roi_layers, maps))
    )


def suppress(boxes: Tensor, scores: Tensor, labels: Tensor, limit: Tensor, cfg: ConfigDict) -> Found:
    """Non-maximum suppression of boxes (n, 4) within each label (n, ), after clipping to the limit (W, H, W, H).

    Dropped boxes have scores (n, ) of -1. ``cfg`` has ``nms`` and ``max_per_img``, and optionally ``min_bbox_size``.
    Returns the best ``max_per_img`` boxes, scores and labels, padded with zeros and scores of -1.
    """
    boxes = torch.minimum(boxes.clamp(min=0), limit)
    inside = (scores >= 0) & (boxes[:, 2:] - boxes[:, :2] > cfg.get('min_bbox_size', -1)).all(1)
    # A box of zeros in front stands for missing ones.
    boxes, labels = (F.pad(t[inside], (0, 0) * (t.dim() - 1) + (1, 0)) for t in (boxes, labels))
    scores = F.pad(scores[inside], (1, 0), value=-1.0)
    apart = boxes if cfg.nms.get('class_agnostic') else boxes + (labels * (boxes.max() + 1))[:, None]
    kept = F.pad(nms(apart, scores, cfg.nms.iou_threshold), (0, cfg.max_per_img))[: cfg.max_per_img]
    return boxes[kept], scores[kept], labels[kept]


def _stages(part: nn.Module) -> list[nn.Module]:
    """The parts of a cascade's stages, or the one of a single stage."""
    return list(part) if isinstance(part, nn.ModuleList) else [part]
