"""A detector as one graph of tensors: boxes are decoded and suppressed by operators that runtimes know.

The heads' own methods compute scores and offsets; choosing candidates is written here. mmdet drops boxes below a
threshold, which makes lengths depend on values. A graph gives them a negative score instead, and drops them at once
before non-maximum suppression, the only operator whose output has any length.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmdet.models import ATSSHead, GFLHead, RetinaHead
from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
from mmengine.config import ConfigDict
from torch import Tensor, nn
from torchvision.ops import nms

from mmsoft.utils import UsageError

Found = tuple[Tensor, Tensor, Tensor]
HEADS = (RetinaHead, ATSSHead, GFLHead)


class Detections(nn.Module):
    """A detector from one image to the boxes in it.

    Args:
        model (nn.Module): RetinaNet, ATSS or GFL.

    Raises:
        UsageError: If it is another detector, or if its ``test_cfg`` asks for another kind of suppression than ``nms``.
    """

    inputs, outputs = ('images', 'image_size'), ('boxes', 'scores', 'labels')

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, head = model, getattr(model, 'bbox_head', None)
        if type(head) not in HEADS:
            raise UsageError(
                f'{type(model).__name__} cannot be exported. The detectors that can are RetinaNet, ATSS and GFL.'
            )
        if head.test_cfg.nms.get('type', 'nms') != 'nms':
            raise UsageError(f'{head.test_cfg.nms.type} cannot be exported; choose nms in test_cfg.')

    def forward(self, images: Tensor, image_size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Finds objects.

        Args:
            images (Tensor): One normalised image, padded with zeros at the right and bottom, shape (1, 3, H, W).
            image_size (Tensor): Its rows and columns without the padding, shape (2, ) of int64.

        Returns:
            tuple[Tensor]: Boxes (n, 4) as x1, y1, x2, y2 in pixels of the image, scores (n, ) and labels (n, ), best
            first, where n is the config's ``max_per_img`` and missing boxes have a score of 0.
        """
        limit = image_size.to(images.dtype).flip(0).repeat(2)
        return find(self.model.bbox_head, self.model.extract_feat(images), limit)


def find(head: BaseDenseHead, maps: Sequence[Tensor], limit: Tensor) -> Found:
    """What one of :data:`HEADS` finds in one image.

    Takes maps (1, C, H', W') and the limit of boxes, W, H, W, H of the image; returns what :func:`suppress` does.
    """
    cfg, boxes, scores, labels = head.test_cfg, [], [], []
    logits, offsets, *factors = head(maps)
    priors = head.prior_generator.grid_priors([x.shape[2:] for x in logits], dtype=limit.dtype, device=limit.device)
    for level, (logit, offset, prior) in enumerate(zip(logits, offsets, priors)):
        logit = logit[0].permute(1, 2, 0).reshape(-1, head.cls_out_channels)
        score = logit.sigmoid() if head.use_sigmoid_cls else logit.softmax(-1)[:, :-1]
        offset = offset[0].permute(1, 2, 0)
        if isinstance(head, GFLHead):  # a distribution of distances in strides, from the anchors' centres
            offset = head.integral(offset) * head.prior_generator.strides[level][0]
            prior = head.anchor_center(prior)
        best, place = F.pad(score.flatten(), (0, cfg.nms_pre), value=-1.0).topk(cfg.nms_pre)
        best = best.masked_fill(best <= cfg.get('score_thr', 0), -1.0)
        place = place.clamp(max=score.numel() - 1)
        labels.append(place % score.size(1))
        place = place // score.size(1)
        boxes.append(head.bbox_coder.decode(prior[place], offset.reshape(-1, head.bbox_coder.encode_size)[place]))
        scores.append(best * factors[0][level][0].flatten().sigmoid()[place] if factors else best)
    return suppress(torch.cat(boxes), torch.cat(scores), torch.cat(labels), limit, cfg)


def suppress(boxes: Tensor, scores: Tensor, labels: Tensor, limit: Tensor, cfg: ConfigDict) -> Found:
    """Non-maximum suppression among boxes (n, 4) of one label (n, ), clipped to the limit W, H, W, H.

    Boxes that do not count have scores (n, ) of 0 or less. ``cfg`` has ``nms`` and ``max_per_img``, and optionally
    ``score_thr`` and ``min_bbox_size``. Returns the best ``max_per_img`` boxes, scores and labels, filled with zeros.
    """
    boxes, count = torch.minimum(boxes.clamp(min=0), limit), cfg.max_per_img
    inside = (scores > cfg.get('score_thr', 0)) & (boxes[:, 2:] - boxes[:, :2] > cfg.get('min_bbox_size', -1)).all(1)
    # A box of zeros in front, which is never suppressed, stands for missing ones.
    boxes, scores, labels = (F.pad(t[inside], (0, 0) * (t.dim() - 1) + (1, 0)) for t in (boxes, scores, labels))
    apart = boxes if cfg.nms.get('class_agnostic') else boxes + (labels * (boxes.max() + 1))[:, None]
    kept = F.pad(nms(apart, scores, cfg.nms.iou_threshold), (0, count))[:count]
    return boxes[kept], scores[kept], labels[kept]
