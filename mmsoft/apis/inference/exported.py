"""An exported file in the place of a model's network: what is around it, and the drawing, stay the host's."""
import contextlib
import io
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from mmengine.config import Config
from mmengine.structures import InstanceData
from torch import Tensor, nn

from mmsoft.utils import UsageError
from ..deployment.describe import preprocessing
from ..deployment.formats import read
from .task import Task

Run = Callable[..., Tuple[Tensor, ...]]


def exported_task(make: Callable[..., Task], cfg: Config, path: str, device: Optional[str],
                  *options) -> Task:
    """A task whose model runs an exported file.

    Args:
        make (Callable): The task's class.
        cfg (Config): The config that the file was exported with.
        path (str): The file.
        device (str, optional): None or ``'cpu'``.
        *options: The others of :class:`Task`.

    Raises:
        UsageError: If the file cannot be read or is of another config, or the device is another.
    """
    if device not in (None, 'cpu'):
        raise UsageError(f'{path} runs on the CPU here; leave out --device {device}.')
    run, described = read(path)
    for name, value in preprocessing(cfg).items():
        if described[name] != value:
            raise UsageError(f'{path} does not fit the config: its {name} is {described[name]}, and not {value}.')
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        weights = str(Path(folder, 'none.pth'))  # all that the hosts read of it is the names of classes
        torch.save(dict(state_dict={}, meta=dict(dataset_meta=described['dataset_meta'])), weights)
        task = make(cfg, weights, 'cpu', *options)
    model = task.inferencer.model
    run = partial(_run, run, described, path)
    if described['task'] == 'detection':
        model.predict = partial(_detect, model, run)
    else:
        model.extract_feat = lambda images, *args, **kwargs: run(images)[0]
        head = model.decode_head if described['task'] == 'segmentation' else model.head
        head.forward = lambda logits: logits
    return task


def _run(run: Run, described: Dict[str, Any], path: str, images: Tensor, *others: Tensor) -> Tuple[Tensor, ...]:
    sides, fixed, divisor = list(images.shape[2:]), described['size'], described['side_divisor']
    least = described.get('least_side', 1)
    if fixed and sides != fixed or any(side % divisor or side < least for side in sides):
        multiples = f' that are multiples of {divisor}' if divisor > 1 else ''
        wanted = 'x'.join(map(str, fixed)) if fixed else f'sides of {least} or more{multiples}'
        raise UsageError(f'{path} takes images of {wanted}, and the config makes one of {sides[0]}x{sides[1]}; export '
                         'to ONNX without --size to take all.')
    return run(images.contiguous(), *others)


def _detect(model: nn.Module, run: Run, inputs: Tensor, samples: list, rescale: bool = True) -> list:
    """``model.predict`` of mmdet."""
    return model.add_pred_to_datasample(samples, [_found(model, run, *pair) for pair in zip(inputs.split(1), samples)])


def _found(model: nn.Module, run: Run, image: Tensor, sample: Any) -> InstanceData:
    boxes, scores, labels, *masks = run(image, torch.tensor(sample.img_shape[:2]))
    inside = scores > 0
    found = InstanceData(bboxes=boxes[inside], scores=scores[inside], labels=labels[inside])
    if masks and len(found):
        head = model.roi_head.mask_head
        head = head[0] if isinstance(head, nn.ModuleList) else head
        found.masks = head._predict_by_feat_single(  # which also scales the boxes
            masks[0][inside, None].numpy(), found.bboxes, torch.zeros_like(found.labels), sample.metainfo,
            model.roi_head.test_cfg, rescale=True, activate_map=True)
        return found
    if masks:
        found.masks = torch.zeros((0, *sample.ori_shape[:2]), dtype=torch.bool)
    found.bboxes = found.bboxes / found.bboxes.new_tensor(sample.scale_factor).repeat(2)
    return found
