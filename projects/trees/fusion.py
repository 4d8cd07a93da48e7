"""Fuses the boxes that a detector finds in several views of an image."""

from typing import Any

from mmdet.models import DetTTAModel
from mmdet.models.utils import weighted_boxes_fusion
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData

from mmsoft.registry import MODELS


@MODELS.register_module()
class FusedTTAModel(DetTTAModel):
    """Test-time augmentation that averages the boxes of an object, by their scores, where mmdet keeps the best one.

    Weighted boxes fusion, `Solovyev et al. 2021 <https://arxiv.org/abs/1910.13302>`_, as mmdet computes it: boxes of a
    class with an IoU above ``iou_thr`` are one object; its score is their mean, times the part of views that found it.

    Args:
        iou_thr (float): See above. Defaults to 0.5.
        max_per_img (int): The number of boxes to keep. Defaults to 1000.
    """

    def __init__(self, iou_thr: float = 0.5, max_per_img: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.iou_thr, self.max_per_img = iou_thr, max_per_img

    def _merge_single_sample(self, data_samples: list[DetDataSample]) -> DetDataSample:
        """Fuses the predictions in views of one image, in pixels of the image."""
        found = [sample.pred_instances for sample in data_samples]
        boxes = [
            self.merge_aug_bboxes([one.bboxes], None, [sample.metainfo]) for one, sample in zip(found, data_samples)
        ]
        scores, labels = [one.scores for one in found], [one.labels for one in found]
        fused = weighted_boxes_fusion(boxes, scores, labels, iou_thr=self.iou_thr)
        device = boxes[0].device
        boxes, scores, labels = (part[: self.max_per_img].to(device) for part in fused)
        result = data_samples[0]
        result.pred_instances = InstanceData(bboxes=boxes.reshape(-1, 4), scores=scores, labels=labels.long())
        return result
