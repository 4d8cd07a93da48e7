"""What a network sees: a sheet of features and bottleneck kernels for each image, and the share of attention."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import numpy as np
import torch
from torch import nn

from mmsoft.attention.measure import measured_attention, stage_of
from mmsoft.backbones.base import BaseBackbone
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config
from mmsoft.visualization import Panel, contact_sheet, feature_image, overlay, watch_bottlenecks

from .images import check_new, find_images, result_names
from .prediction import prepare
from .tasks import build_task

PLACES = ((0.3, 0.3), (0.3, 0.7), (0.7, 0.3), (0.7, 0.7))
"""Of bottleneck tokens, as parts of height and width."""


def visualize(
    config: str,
    checkpoint: str,
    source: str,
    out_dir: str,
    stages: Optional[Sequence[int]] = None,
    device: Optional[str] = None,
) -> list[Path]:
    """Writes a sheet ``OUT_DIR/vis/….png`` for each image, of what the network sees in the stages of its backbone.

    ``OUT_DIR/attention_share.json`` has the share of attention in each block, a mean over the images; see
    :class:`mmsoft.attention.measure.Contribution`.

    Args:
        config (str): Config of a detector, segmenter or classifier with a backbone of mmsoft.
        checkpoint, source, out_dir, device: As in :func:`~mmsoft.apis.predict`.
        stages (Sequence[int], optional): Stages, or blocks of a backbone of one stride, counted from 0 as in
            ``out_indices``. Defaults to all stages, or four blocks evenly spread.

    Returns:
        list[Path]: Broken images, which were named and skipped.

    Raises:
        UsageError: If files are missing, ``out_dir`` is not empty or options do not fit.
    """
    cfg, out = load_config(config), Path(out_dir, 'vis')
    names = find_images(source)
    sheets = result_names(names.values(), '.png')
    check_new(out_dir)
    task = build_task(cfg, checkpoint, device)
    model = task.inferencer.model
    backbone = model.backbone
    if not isinstance(backbone, BaseBackbone):
        raise UsageError(f'{config} has the backbone {type(backbone).__name__}, which is not one of mmsoft.')
    count = len(getattr(backbone, 'stages', None) or backbone.blocks)
    if stages is None:
        stages = np.unique(np.linspace(-1, count - 1, min(count, 4) + 1)[1:].astype(int)).tolist()
    if not all(0 <= stage < count for stage in stages):
        raise UsageError(f'--stages are from 0 to {count - 1} for this backbone; got {", ".join(map(str, stages))}.')
    backbone.out_indices, backbone.out_type, backbone.with_cls_token = tuple(sorted(set(stages))), 'featmap', False

    broken: list[Path] = []
    with measured_attention(backbone) as contributions:
        for path, _, prepared in prepare(task, names, broken):
            contact_sheet(look(model, task.collate([prepared])), out / sheets[names[path]], width=3.0)
    shares = {name: round(one.share, 4) for name, one in contributions.items() if one.share is not None}
    if shares:
        Path(out_dir, 'attention_share.json').write_text(json.dumps(shares, indent=1))
    print(f'Sheets of {len(names) - len(broken)} of {len(names)} images are in {out}.')
    return broken


@torch.no_grad()
def look(model: nn.Module, data: dict) -> list[list[Panel]]:
    """The rows of a sheet: features of the backbone, and bottleneck kernels where there are any.

    Args:
        model (nn.Module): A detector, segmenter or classifier, whose backbone returns feature maps.
        data (dict): One image, prepared and collated.
    """
    pixels, backbone = data['inputs'][0].permute(1, 2, 0).cpu().numpy()[..., ::-1], model.backbone
    images = model.data_preprocessor(data, False)['inputs']
    image = np.zeros((*images.shape[2:], 3), np.uint8)
    image[: pixels.shape[0], : pixels.shape[1]] = pixels
    with watch_bottlenecks(backbone) as seen:
        maps = [x[0] for x in backbone(images)]

    kind = 'stage' if hasattr(backbone, 'stages') else 'block'
    rows = [[Panel(image, 'image')]]
    for index, x in zip(backbone.out_indices, maps):
        rows[0].append(Panel(feature_image(x), f'features of {kind} {index}, {x.size(1)}×{x.size(2)}'))
        inside = [one for name, one in seen.items() if stage_of(name) == index]
        if inside:
            kernels = [inside[-1].kernel(*place) for place in PLACES[: len(maps)]]
            rows.append([Panel(image, f'bottleneck kernels, {kind} {index}', [place for _, place in kernels])])
            for kernel, place in kernels:
                rows[-1].append(Panel(overlay(image, kernel), f'{kernel.min():.2g} to {kernel.max():.2g}', [place]))
    return rows
