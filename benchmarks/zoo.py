"""Parameters and FLOPs of the configs beside what the papers print, and the papers' scores: ``tools/zoo.py``."""
import argparse
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from mmengine.config import Config
from mmengine.fileio import load
from mmengine.hub import get_config
from mmengine.logging import MMLogger
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from tabulate import tabulate
from torch import Tensor, nn

from mmsoft.apis.cli import command_line
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config, without_pretrained
from mmsoft.apis.flops import INVERSE, count_flops

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
    init_default_scope(cfg.default_scope)
    model = revert_sync_batchnorm(MODELS.build(without_pretrained(cfg).model))
    model.init_weights()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if not flops:
        return Size(parameters)
    shape = shape or SHAPES[cfg.default_scope]
    counted = count_flops(_Tensors(model, cfg.default_scope, shape), torch.randn(1, 3, *shape))
    return Size(parameters, sum(counted.values()) - counted[INVERSE], counted[KERNEL], counted[INVERSE])


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
    sample = DetDataSample(metainfo=dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape'), shape))
    sample.gt_instances = InstanceData(bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long))
    return sample


def score_tables(published: Dict[str, dict]) -> str:
    """One Markdown table for each task, of all models that the papers give a score, see :func:`published_models`."""
    tables = []
    for names in SCORES:
        rows = [(name, *(model['Scores'].get(score, '–') for score in names), model['Printed In'])
                for name, model in sorted(published.items()) if names[0] in model['Scores']]
        if rows:
            tables.append(_table(('config', *names, 'printed in'), rows))
    return '\n\n'.join(tables)


def _size_row(name: str, shape: Tuple[int, int], size: Size, published: dict) -> Sequence[str]:

    def figure(number: Optional[float], unit: float) -> str:
        return f'{number / unit:.4g}' if number else '–'

    height, width = shape
    return (name, f'{width}×{height}', f'{size.parameters / 1e6:.2f}', figure(published.get('Parameters'), 1e6),
            figure(size.flops, 1e9), figure(size.kernel, 1e9), figure(published.get('FLOPs'), 1e9),
            figure(size.inverse, 1e9))


def _table(header: Sequence[str], rows: Sequence[Sequence]) -> str:
    return tabulate(rows, header, tablefmt='github', disable_numparse=True)


def print_tables(root: Path, names: List[str], backbones: bool, shape: Optional[Tuple[int, int]], no_flops: bool,
                 scores: bool) -> None:
    """Prints the tables of what :func:`parse_args` chooses, and on stderr what is being counted.

    Raises:
        UsageError: If no config has such a name, or the image is too small.
    """
    if shape and min(shape) < 32:
        raise UsageError('--shape needs 32 rows and columns at least.')
    published = published_models(root / 'model-index.yml')
    chosen = [path for path in sorted((root / 'configs').glob('*.py'))
              if (not names or any(name in path.stem for name in names)) and
              (not backbones or path.stem.endswith('_in1k'))]
    hosts = {name: _host_config(name) for name in names if '::' in name}
    if not chosen and not hosts:
        raise UsageError(f'No config is called {" or ".join(names)}; they are in {root / "configs"}.')
    if scores:
        print(score_tables({path.stem: published[path.stem] for path in chosen if path.stem in published}))
        return
    MMLogger.get_instance('zoo', log_level='ERROR')  # of what mmengine says of initial weights
    rows = []
    for name in [*(path.stem for path in chosen), *hosts]:
        print(f'{name} …', file=sys.stderr, flush=True)
        cfg = hosts.get(name) or load_config(str(root / f'configs/{name}.py'))
        size = measure(cfg, shape, not no_flops)
        rows.append(_size_row(name, shape or SHAPES[cfg.default_scope], size, published.get(name, {})))
    print(_table(('config', 'input', 'parameters, M', 'the paper\'s', 'GFLOPs', 'of which kernel products',
                  'the paper\'s', 'the inverse'), rows))


def _host_config(name: str) -> Config:
    try:
        return get_config(name)
    except Exception as error:  # whatever mmengine says of a package or a file that is not there
        raise UsageError(f'{name} is no config of an installed host ({error}).') from error


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Prints parameters and FLOPs of the configs beside the papers\' figures, as a Markdown table.')
    parser.add_argument('names', nargs='*', metavar='NAME',
                        help='configs whose name contains this, as in mask_rcnn, or a config of a host, as in '
                        'mmdet::atss/atss_r50_fpn_1x_coco.py (default: all of ours)')
    parser.add_argument('--backbones', action='store_true', help='classifiers alone: a backbone and a linear map')
    parser.add_argument('--shape', nargs=2, type=int, metavar=('H', 'W'),
                        help='image (default: what the papers count at, 800 1280 for detectors, 512 512 for '
                        'segmenters, 224 224 for classifiers)')
    parser.add_argument('--no-flops', action='store_true', help='leave out FLOPs, which take a minute for a detector')
    parser.add_argument('--scores', action='store_true', help='the papers\' scores alone')
    return parser.parse_args()


def main(root: Path) -> int:
    """Runs the command line in a folder with ``configs/`` and ``model-index.yml``, and returns its exit code."""
    options = vars(parse_args())
    return command_line(lambda: print_tables(root, **options), 'Interrupted.')
