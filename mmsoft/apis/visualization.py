"""Draws features and bottleneck kernels of a network, a sheet per image, and saves the share of attention."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor, nn

from mmsoft.attention.measure import measured_attention, stage_of, watch_bottlenecks
from mmsoft.backbones.base import BaseBackbone
from mmsoft.utils import UsageError
from mmsoft.utils.config import Options, load_config
from mmsoft.utils.files import atomic_write

from .prediction import find_inputs, prepare, result_names
from .tasks import build_task

PLACES = ((0.3, 0.3), (0.3, 0.7), (0.7, 0.3), (0.7, 0.7))  # of bottleneck tokens, as fractions of height and width
RIM = withStroke(linewidth=3, foreground='black')  # so that crosses are seen on light images, too


def visualize(
    config: str,
    checkpoint: str,
    source: str,
    out_dir: str,
    stages: Optional[Sequence[int]] = None,
    device: Optional[str] = None,
    cfg_options: Options = None,
) -> list[Path]:
    """Writes a sheet ``OUT_DIR/vis/….png`` for each image: features and bottleneck kernels of the backbone's stages.

    ``OUT_DIR/attention_share.json`` has the share of attention in each block, a mean over the images; see
    :class:`mmsoft.attention.measure.Contribution`. ``stages``, or blocks of a backbone of one stride, count from 0; by
    default all stages, or four blocks evenly spread. For the rest see :func:`~mmsoft.apis.predict`.
    """
    cfg, out = load_config(config, cfg_options), Path(out_dir, 'vis')
    names = find_inputs(cfg, source, out_dir)
    task = build_task(cfg, checkpoint, device)
    backbone = getattr(task.inferencer.model, 'backbone', None)
    if not isinstance(backbone, BaseBackbone):
        raise UsageError(f'{config} has no backbone of mmsoft, but {type(backbone).__name__}.')
    count = len(getattr(backbone, backbone.unit))
    if stages is None:
        stages = [(i + 1) * count // min(count, 4) - 1 for i in range(min(count, 4))]
    if not all(0 <= stage < count for stage in stages):
        raise UsageError(f'--stages are from 0 to {count - 1} for this backbone; got {", ".join(map(str, stages))}.')
    backbone.out_indices, backbone.out_type, backbone.with_cls_token = tuple(sorted(set(stages))), 'featmap', False
    sheets = result_names(names, '.png')
    broken: list[Path] = []
    with measured_attention(backbone) as contributions:
        for path, _, prepared in prepare(task, names, broken):
            sheet = draw(task.inferencer.model, task.collate([prepared]))
            with atomic_write(out / sheets[path]) as file:
                sheet.savefig(file, format='png')
    if shares := {name: round(one.share, 4) for name, one in contributions.items() if one.share is not None}:
        Path(out_dir, 'attention_share.json').write_text(json.dumps(shares, indent=1))
    print(f'Sheets of {len(names) - len(broken)} of {len(names)} images are in {out}.')
    return broken


@torch.no_grad()
def draw(model: nn.Module, data: dict) -> Figure:
    """Sheet of one image, prepared and collated: the maps of the backbone, and the bottleneck kernels of its stages."""
    backbone = model.backbone
    pixels = data['inputs'][0].permute(1, 2, 0).cpu().numpy()[..., ::-1]
    images = model.data_preprocessor(data, False)['inputs']
    height, width = images.shape[2:]
    image = np.pad(pixels.astype(np.uint8), ((0, height - pixels.shape[0]), (0, width - pixels.shape[1]), (0, 0)))
    with watch_bottlenecks(backbone) as seen:
        maps = [x[0] for x in backbone(images)]
    last = {stage_of(name): one for name, one in seen.items() if stage_of(name) in backbone.out_indices}
    count, kind = 1 + len(maps), backbone.unit[:-1]  # stage or block
    figure = Figure((3.0 * count, (3.0 * height / width + 0.4) * (1 + len(last))), dpi=100, layout='compressed')
    (first, *others) = figure.subplots(1 + len(last), count, squeeze=False)
    for axis in figure.axes:
        axis.axis('off')  # also where a row has fewer images
    show(first[0], image, 'image')
    for axis, index, x in zip(first[1:], backbone.out_indices, maps):
        show(axis, feature_image(x), f'features of {kind} {index}, {x.size(1)}×{x.size(2)}')
    for axes, (index, bottleneck) in zip(others, last.items()):
        show(axes[0], image, f'bottleneck kernels, {kind} {index}')
        for axis, place in zip(axes[1:], PLACES):
            kernel, (y, x) = bottleneck.kernel(*place)
            show(axis, image, f'{kernel.min():.2g} to {kernel.max():.2g}')
            extent = (-0.5, width - 0.5, height - 0.5, -0.5)
            axis.imshow(kernel.cpu(), 'inferno', alpha=0.5, extent=extent, interpolation='bilinear')
            for marked in (axes[0], axis):
                marked.plot(x * width, y * height, '+', color='white', markersize=12, path_effects=[RIM])
    return figure


def show(axis: Axes, image: np.ndarray, title: str) -> None:
    axis.imshow(image)
    axis.set_title(title, fontsize=9)


def feature_image(features: Tensor) -> np.ndarray:
    """The first three principal components of a map (C, H', W') as red, green and blue, (H', W', 3) of uint8."""
    tokens = features.flatten(1).T.double()
    tokens = tokens - tokens.mean(0)
    parts = tokens @ torch.linalg.eigh(tokens.T @ tokens).eigenvectors[:, -3:].flip(1)
    parts = parts * parts.gather(0, parts.abs().argmax(0, keepdim=True)).sign()
    low, high = parts.quantile(0.01, 0), parts.quantile(0.99, 0)
    parts = ((parts - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return (255 * parts).round().byte().unflatten(0, features.shape[1:]).cpu().numpy()
