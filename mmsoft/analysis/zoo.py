"""Parameters and FLOPs of the configs beside what the papers print of them, and the papers' scores."""
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import torch
from mmengine.config import Config
from mmengine.fileio import load
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from tabulate import tabulate
from torch import Tensor, nn

from mmsoft.utils.config import without_pretrained
from .flops import INVERSE, count_flops

KERNEL = 'PythonOp._GaussianProduct'
# What the papers count at, (rows, columns).
SHAPES = dict(mmdet=(800, 1280), mmseg=(512, 512), mmpretrain=(224, 224))
# The scores of a task, which all have the first one.
SCORES = (
    ('Top 1 Accuracy', ),
    ('box AP', 'box AP50', 'box AP75', 'box AP S', 'box AP M', 'box AP L', 'mask AP', 'mask AP50', 'mask AP75'),
    ('mIoU', ),
)


class Size(NamedTuple):
    """Parameters, and multiply-accumulates: all but those of SOFT's inverse, the kernel's share of them, the inverse's.

    The latter three are None if they have not been counted.
    """
    parameters: int
    flops: Optional[float] = None
    kernel: Optional[float] = None
    inverse: Optional[float] = None


def published_models(model_index: Path) -> Dict[str, dict]:
    """What the metafiles say of each config.

    Args:
        model_index (Path): ``model-index.yml``.

    Returns:
        dict[str, dict]: By a config's name its metadata (``Parameters`` and ``FLOPs`` as the paper prints them,
        ``Printed In``, …), and its scores by their names as ``Scores``.
    """
    models = [model for part in load(str(model_index))['Import']
              for model in load(str(model_index.parent / part))['Models']]
    return {
        model['Name']: dict(
            model['Metadata'],
            Scores={name: value for result in model.get('Results', []) for name, value in result['Metrics'].items()})
        for model in models
    }


def measure(cfg: Config, shape: Optional[Tuple[int, int]] = None, flops: bool = True) -> Size:
    """Counts a config's model.

    Args:
        cfg (Config): Of mmdet, mmseg or mmpretrain.
        shape (tuple[int, int], optional): Rows and columns of the image; None takes what papers count at.
        flops (bool): Whether to count FLOPs, which means to run the model once.
    """
    model, shape = build(cfg), shape or SHAPES[cfg.default_scope]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if not flops:
        return Size(parameters)
    counted = count_flops(_Tensors(model, cfg.default_scope, shape), torch.randn(1, 3, *shape))
    return Size(parameters, sum(counted.values()) - counted[INVERSE], counted[KERNEL], counted[INVERSE])


def size_table(sizes: Dict[str, Tuple[Tuple[int, int], Size]], published: Dict[str, dict]) -> str:
    """A Markdown table.

    Args:
        sizes (dict[str, tuple]): By a config's name the image's rows and columns, and the model's size.
        published (dict[str, dict]): See :func:`published_models`.
    """
    header = ('config', 'input', 'parameters, M', 'the paper\'s', 'GFLOPs', 'of which kernel products', 'the paper\'s',
              'the inverse')
    rows = []
    for name, ((height, width), size) in sizes.items():
        figures = published.get(name, {})
        rows.append((name, f'{width}×{height}', f'{size.parameters / 1e6:.2f}', _in(1e6, figures.get('Parameters')),
                     _in(1e9, size.flops), _in(1e9, size.kernel), _in(1e9, figures.get('FLOPs')),
                     _in(1e9, size.inverse)))
    return _table(header, rows)


def score_tables(published: Dict[str, dict]) -> str:
    """One Markdown table for each task, of all models that the papers give a score.

    Args:
        published (dict[str, dict]): See :func:`published_models`.
    """
    tables = []
    for names in SCORES:
        rows = [(name, *(model['Scores'].get(score, '–') for score in names), model['Printed In'])
                for name, model in sorted(published.items()) if names[0] in model['Scores']]
        if rows:
            tables.append(_table(('config', *names, 'printed in'), rows))
    return '\n\n'.join(tables)


def build(cfg: Config) -> nn.Module:
    """A config's model with random weights, ready to run on a CPU."""
    init_default_scope(cfg.default_scope)
    model = revert_sync_batchnorm(MODELS.build(without_pretrained(cfg).model))
    model.init_weights()
    return model.eval()


class _Tensors(nn.Module):
    """What every host's model computes of an image before it looks for results in it; detectors, of 1000 proposals.

    Masks are computed of 100 regions, as papers have counted them since mmdet 2; mmdet 3 takes all for some heads.
    """

    def __init__(self, model: nn.Module, scope: str, shape: Tuple[int, int]) -> None:
        super().__init__()
        self.model, self.mask_heads, self.options = model, nn.ModuleList(), {}
        if scope == 'mmdet':
            self.options['data_samples'] = [_empty_sample(shape)]
            if getattr(model, 'with_mask', False):
                heads, model.roi_head.mask_head = model.roi_head.mask_head, None
                self.mask_heads.extend(heads if isinstance(heads, nn.ModuleList) else [heads])

    def forward(self, image: Tensor):
        masks = [head(image.new_zeros(100, head.in_channels, 14, 14)) for head in self.mask_heads]
        return self.model(image, mode='tensor', **self.options), masks


def _empty_sample(shape: Tuple[int, int]):
    from mmdet.structures import DetDataSample
    names = ('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape')
    sample = DetDataSample(metainfo={name: shape for name in names})
    sample.gt_instances = InstanceData(bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long))
    return sample


def _in(unit: float, number: Optional[float]) -> str:
    return f'{number / unit:.4g}' if number else '–'


def _table(header: Sequence[str], rows: Iterable[Sequence]) -> str:
    rows: List[Sequence] = list(rows)
    return tabulate(rows, header, tablefmt='github', disable_numparse=True)
