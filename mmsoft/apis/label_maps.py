"""Label maps of large images: what mmseg predicts, without the scores of every class at full size."""

import torch
import torch.nn.functional as F
from mmengine.structures import PixelData
from torch import Tensor, nn


def predict_labels(model: nn.Module, data: dict) -> list:
    """mmseg's ``model.test_step(data)`` but for ``seg_logits``, which are never held for a whole large image.

    Labels are mmseg's pixel for pixel, ties included. With ``mode='slide'`` in ``test_cfg``, mmseg holds the scores of
    all classes at the size of the network's input.

    Args:
        model (nn.Module): An ``EncoderDecoder`` of two classes or more.
        data (dict): ``inputs``, a list of images (3, H, W), and ``data_samples``, as its pipeline packs them.

    Returns:
        list[SegDataSample]: Samples with ``pred_sem_seg`` of shape (1, H, W) and int64, as large as the images were.
    """
    data = model.data_preprocessor(data)
    samples = data['data_samples']
    for scores, sample in zip(model.inference(data['inputs'], [one.metainfo for one in samples]), samples):
        left, right, top, bottom = sample.get('img_padding_size', sample.get('padding_size', (0,) * 4))
        scores = scores[:, top : scores.size(1) - bottom, left : scores.size(2) - right]
        labels = best_class(scores, sample.ori_shape, model.align_corners)
        sample.set_data(dict(pred_sem_seg=PixelData(data=labels[None])))
    return samples


def best_class(scores: Tensor, size: tuple[int, int], align_corners: bool) -> Tensor:
    """``F.interpolate(scores, size, mode='bilinear').argmax(0)`` of scores (C, h, w), one class at a time.

    Of equal scores the first class's wins, as in ``argmax``. Returns labels of shape ``size`` and int64.
    """
    best = scores.new_full(size, -torch.inf)
    labels = torch.zeros(size, dtype=torch.long, device=scores.device)
    for index in range(scores.size(0)):
        score = F.interpolate(scores[None, index : index + 1], size, mode='bilinear', align_corners=align_corners)[0, 0]
        labels.masked_fill_(score > best, index)
        torch.maximum(best, score, out=best)
    return labels
