"""Parameters and FLOPs of the configs, beside what the papers print of them."""
from pathlib import Path
from typing import Dict, Iterable, Iterator, Optional, Tuple

import torch
from mmengine.config import Config
from mmengine.fileio import load
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from torch import Tensor, nn

from mmsoft.utils.config import load_config, without_pretrained
from .flops import INVERSE, count_flops

KERNEL = 'PythonOp._GaussianProduct'
# What the papers count at, (rows, columns).
SHAPES = dict(mmdet=(800, 1280), mmseg=(512, 512), mmpretrain=(224, 224))
HEADER = ('| config | input | parameters, M | paper | GFLOPs | of which kernel products | paper | the inverse |\n'
          '|---|---|---|---|---|---|---|---|')


def published_figures(model_index: Path) -> Dict[str, dict]:
    """``Parameters`` and ``FLOPs`` that the papers print, by a config's name.

    Args:
        model_index (Path): ``model-index.yml``.

    Returns:
        dict[str, dict]: The metadata of each model in it.
    """
    return {
        model['Name']: model['Metadata']
        for part in load(str(model_index))['Import'] for model in load(str(model_index.parent / part))['Models']
    }


def zoo_table(configs: Iterable[Path], published: Dict[str, dict], flops: bool = True) -> Iterator[str]:
    """Lines of a Markdown table, each as soon as it is counted.

    Args:
        configs (Iterable[Path]): Config files.
        published (dict[str, dict]): See :func:`published_figures`.
        flops (bool): Whether to count FLOPs, which means to run each model once.

    Yields:
        str: A line.
    """
    yield HEADER
    for path in configs:
        cfg = load_config(str(path))
        figures = published.get(path.stem, {})
        model, shape = build(cfg), SHAPES[cfg.default_scope]
        parameters = sum(parameter.numel() for parameter in model.parameters())
        counted = ['–'] * 4
        if flops:
            by_operator = count_flops(_Tensors(model, cfg.default_scope, shape), torch.randn(1, 3, *shape))
            total = sum(by_operator.values()) - by_operator[INVERSE]
            counted = [_in(1e9, total), _in(1e9, by_operator[KERNEL]), _in(1e9, figures.get('FLOPs')),
                       _in(1e9, by_operator[INVERSE])]
        yield ' | '.join((f'| {path.stem}', f'{shape[1]}×{shape[0]}', f'{parameters / 1e6:.2f}',
                          _in(1e6, figures.get('Parameters')), *counted)) + ' |'


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
