"""Label maps of large images: what mmseg predicts, without the scores of every class at full size."""

import copy
from itertools import product

import torch
import torch.nn.functional as F
from mmengine.structures import PixelData
from torch import Tensor, nn

from mmsoft.utils import UsageError


def predict_labels(model: nn.Module, data: dict) -> list:
    """mmseg's ``model.test_step(data)`` but for ``seg_logits``, which are never held for a whole large image.

    Labels are mmseg's pixel for pixel, ties included; see :func:`slide` where ``test_cfg`` says ``mode='slide'``.

    Args:
        model (nn.Module): An ``EncoderDecoder`` of two classes or more.
        data (dict): ``inputs``, a list of images (3, H, W), and ``data_samples``, as its pipeline packs them.

    Returns:
        list[SegDataSample]: Samples with ``pred_sem_seg`` of shape (1, H, W) and int64, as large as the images were.
    """
    shapes = {tuple(sample.ori_shape) for sample in data['data_samples']}
    if model.test_cfg.get('mode') == 'slide' and {tuple(image.shape[1:]) for image in data['inputs']} == shapes:
        samples, labels = data['data_samples'], slide(model, data)
    else:
        data = model.data_preprocessor(data)
        samples, labels = data['data_samples'], []
        for scores, sample in zip(model.inference(data['inputs'], [one.metainfo for one in samples]), samples):
            left, right, top, bottom = sample.get('img_padding_size', sample.get('padding_size', (0,) * 4))
            scores = scores[:, top : scores.size(1) - bottom, left : scores.size(2) - right]
            labels.append(best_class(scores, sample.ori_shape, model.align_corners))
    for sample, label_map in zip(samples, labels):
        sample.set_data(dict(pred_sem_seg=PixelData(data=label_map[None])))
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


def slide(model: nn.Module, data: dict) -> Tensor:
    """mmseg's ``slide_inference`` and ``argmax``: scores are added up where windows overlap.

    mmseg divides them by the number of windows, too, which changes a label only if it rounds two scores to one. Of
    scores, those of one window are held, and those of a row of windows where the next row overlaps with it. Takes what
    :func:`predict_labels` takes, normalises a window at a time, and returns labels of shape (B, H, W) and int64.

    Raises:
        UsageError: If ``stride`` in the model's ``test_cfg`` leaves gaps between windows of ``crop_size``.
    """
    images, samples = torch.stack(list(data['inputs'])), data['data_samples']
    batch, _, height, width = images.shape
    tops, h = _starts(height, model.test_cfg.crop_size[0], model.test_cfg.stride[0])
    lefts, w = _starts(width, model.test_cfg.crop_size[1], model.test_cfg.stride[1])
    lowers, rights = [*tops[1:], height], [*lefts[1:], width]
    overlap = max((top + h - lower for top, lower in zip(tops, tops[1:])), default=0)
    device = next(model.parameters()).device
    labels = torch.empty((batch, height, width), dtype=torch.long, device=device)
    above = torch.zeros((batch, model.out_channels, overlap, width), device=device)
    before = above.new_empty((batch, model.out_channels, h, 0))

    for (top, lower), (left, right) in product(zip(tops, lowers), list(zip(lefts, rights))):
        crop = model.data_preprocessor(
            dict(inputs=list(images[..., top : top + h, left : left + w]), data_samples=copy.deepcopy(samples))
        )
        metas = [dict(sample.metainfo, img_shape=crop['inputs'].shape[2:]) for sample in crop['data_samples']]
        sums, known = model.encode_decode(crop['inputs'], metas)[..., :h, :w], before.size(3)
        sums[..., :known] += before
        sums[:, :, :overlap, known:] += above[..., left + known : left + w]
        done, rest = sums[..., : right - left].split((lower - top, top + h - lower), 2)
        above[:, :, : rest.size(2), left:right] = rest
        before = sums[..., right - left :].clone()
        labels[:, top:lower, left:right] = done.argmax(1)
        del sums, done, rest  # before the network wants memory for the next window
    return labels


def _starts(extent: int, size: int, stride: int) -> tuple[list[int], int]:
    """Where windows begin along a side, and how long they are; the last one ends where the side does."""
    if stride > size:
        raise UsageError(f'test_cfg.stride of {stride} leaves gaps between windows of {size}; make it smaller.')
    size = min(size, extent)
    return [min(start, extent - size) for start in range(0, extent - size + stride, stride)], size
