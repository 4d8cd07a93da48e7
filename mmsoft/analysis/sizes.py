"""Parameters and FLOPs of every published size, beside the published figures."""
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from mmsoft.registry import MODELS
from .flops import INVERSE, count_flops


class Published(NamedTuple):
    """A backbone, and what is published of its ImageNet classifier at 224²: millions and billions.

    ``parameters`` and ``network`` (FLOPs without and with the inverse) are counted on the authors' network where there
    are two digits behind the point, all else is from the papers.
    """
    backbone: dict
    parameters: float
    flops: float
    network: Optional[Tuple[float, float]] = None


class ModelSize(NamedTuple):
    """Parameters, and multiply-accumulates without and with SOFT's inverse."""
    parameters: int
    flops: int
    flops_with_inverse: int


def _soft(arch: str, norm: bool) -> dict:
    return dict(type='SOFT', arch=arch, attention_norm=norm)


def _xcit(arch: str) -> dict:
    return dict(type='SimAXCiT', arch=arch)


SIZES: Dict[str, Published] = {
    **{
        f'SOFT{"-Norm" * norm} {arch}': Published(_soft(arch, norm), *figures)
        for norm in (False, True) for arch, *figures in (
            ('tiny', 13.07, 1.9, (2.02, 2.21)),
            ('small', 24.11, 3.3, (3.48, 3.88)),
            ('medium', 45.81, 7.2, (7.67, 8.99)),
            ('large', 64.70, 11.0, (11.62, 13.62)),
            ('huge', 87.11, 16.3, (16.54, 19.24)),
        )
    },
    'SimA XCiT-T12/8': Published(_xcit('tiny-12-p8'), 7, 4.8),
    'SimA XCiT-T20/16': Published(_xcit('tiny-20-p16'), 12, 1.9),
    'SimA XCiT-T24/16': Published(_xcit('tiny-24-p16'), 12, 2.3),
    'SimA XCiT-S12/16': Published(_xcit('small-12-p16'), 26, 4.8),
    'SimA DeiT-S': Published(dict(type='SimADeiT', arch='small'), 22, 4.6),
    'SimA CvT-13': Published(dict(type='SimACvT', arch='13'), 20, 4.5),
}


class _Classifier(nn.Module):
    """A backbone's class token and a linear map to the 1000 classes."""

    def __init__(self, backbone: dict) -> None:
        super().__init__()
        self.backbone = MODELS.build(dict(backbone, out_type='cls_token'))
        dims = self.backbone.embed_dims
        self.head = nn.Linear(dims[-1] if isinstance(dims, list) else dims, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x)[-1])


def measure(backbone: dict, image_size: Tuple[int, int] = (224, 224)) -> ModelSize:
    """Counts a backbone as an ImageNet classifier, class token and head included.

    Args:
        backbone (dict): Config of a backbone of ours.
        image_size (tuple[int, int]): Rows and columns of the image.

    Returns:
        ModelSize: Exact numbers.
    """
    model = _Classifier(backbone)
    flops = count_flops(model, torch.zeros(1, 3, *image_size))
    total = int(sum(flops.values()))
    return ModelSize(sum(p.numel() for p in model.parameters()), total - int(flops[INVERSE]), total)


def size_table(names: Sequence[str] = tuple(SIZES), image_size: Tuple[int, int] = (224, 224)) -> str:
    """A Markdown table of the given keys of :data:`SIZES`; published figures stand in brackets and are for 224²."""
    lines = [
        '| model | parameters, M | GFLOPs | GFLOPs with the inverse |',
        '|---|---|---|---|',
    ]
    for name in names:
        published = SIZES[name]
        size = measure(published.backbone, image_size)
        parameters, figures, with_inverse = str(published.parameters), f'paper {published.flops}', '–'
        if published.network:
            parameters = f'{published.parameters:.2f}'
            figures += f', network {published.network[0]}'
            with_inverse = f'{size.flops_with_inverse / 1e9:.2f} (network {published.network[1]})'
        lines.append(f'| {name} | {size.parameters / 1e6:.2f} ({parameters}) | {size.flops / 1e9:.2f} '
                     f'({figures}) | {with_inverse} |')
    return '\n'.join(lines)
