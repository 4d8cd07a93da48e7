"""Parameters and FLOPs of the configs beside the papers', and the papers' scores: ``python -m benchmarks.zoo``."""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import pandas as pd
import torch
from mmengine.config import Config
from mmengine.fileio import load
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from torch import Tensor, nn

from mmsoft.utils import UsageError
from mmsoft.utils.cli import command_line
from mmsoft.utils.config import load_config, without_pretrained

from .common import ROOT, be_quiet, fill_page, markdown, write_table
from .flops import INVERSE, count_flops

KERNEL = 'PythonOp._GaussianProduct'
SHAPES = dict(mmdet=(800, 1280), mmseg=(512, 512), mmpretrain=(224, 224))  # rows and columns that the papers count at
SCORES = dict(  # by table: its columns, and the scores in each; its rows are the models that have the first score
    mmdet={
        'box AP (50, 75)': ('box AP', 'box AP50', 'box AP75'),
        'mask AP (50, 75)': ('mask AP', 'mask AP50', 'mask AP75'),
    },
    by_area={'box AP, small': ('box AP S',), 'medium': ('box AP M',), 'large': ('box AP L',)},
    mmseg={'mIoU': ('mIoU',)},
    mmpretrain={'top-1': ('Top 1 Accuracy',)},
)
HEADER = ('config', 'parameters, M', 'paper', 'input', 'GFLOPs', 'paper')


class Size(NamedTuple):
    """Parameters, and multiply-accumulates, if counted: all but the inverse's, the kernel's share, the inverse's."""

    parameters: int
    flops: Optional[float] = None
    kernel: Optional[float] = None
    inverse: Optional[float] = None


def published_models(model_index: Path) -> dict[str, dict]:
    """The metadata of each config in the metafiles of ``model-index.yml``, and its scores by name as ``Scores``."""
    parts = [load(str(model_index.parent / part)) for part in load(str(model_index))['Import']]
    found = {}
    for model in itertools.chain.from_iterable(part['Models'] for part in parts):
        scores = {name: value for result in model.get('Results', []) for name, value in result['Metrics'].items()}
        found[model['Name']] = dict(model['Metadata'], Scores=scores)
    return found


def measure(cfg: Config, shape: Optional[tuple[int, int]] = None, flops: bool = True) -> Size:
    """Counts a config's model, for images of ``shape`` (H, W) or of the size that papers count at."""
    init_default_scope(cfg.default_scope)
    model = revert_sync_batchnorm(MODELS.build(without_pretrained(cfg).model))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if not flops:
        return Size(parameters)
    shape = shape or SHAPES[cfg.default_scope]
    if cfg.default_scope == 'mmdet':
        torch.manual_seed(0)  # weights and image decide how many proposals there are
        model.init_weights()
    counted = count_flops(_Tensors(model, cfg.default_scope, shape), torch.randn(1, 3, *shape))
    return Size(parameters, sum(counted.values()) - counted[INVERSE], counted[KERNEL], counted[INVERSE])


class _Tensors(nn.Module):
    """What a model computes before it decodes results: detectors for 1000 proposals and, as in papers, 100 masks."""

    def __init__(self, model: nn.Module, scope: str, shape: tuple[int, int]) -> None:
        super().__init__()
        self.model, self.mask_heads, self.options = model, nn.ModuleList(), {}
        if scope == 'mmdet':
            from mmdet.structures import DetDataSample

            shapes = dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape'), shape)
            boxes = InstanceData(bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long))
            self.options['data_samples'] = [DetDataSample(metainfo=shapes, gt_instances=boxes)]
            if getattr(model, 'with_mask', False):
                heads, model.roi_head.mask_head = model.roi_head.mask_head, None
                self.mask_heads.extend(heads if isinstance(heads, nn.ModuleList) else [heads])

    def forward(self, image: Tensor):
        masks = [head(image.new_zeros(100, head.in_channels, 14, 14)) for head in self.mask_heads]
        return self.model(image, mode='tensor', **self.options), masks


def score_rows(published: dict[str, dict], table: str) -> dict[str, tuple[str, ...]]:
    """By config of ``SCORES[table]`` that the papers give a score: its cells, and where it is printed."""
    columns = SCORES[table].values()
    return {
        name: (*(_scores([model['Scores'].get(one) for one in names]) for names in columns), model['Printed In'])
        for name, model in sorted(published.items())
        if next(iter(columns))[0] in model['Scores']
    }


def score_tables(published: dict[str, dict]) -> str:
    """The Markdown tables of :data:`SCORES`, of all models that the papers give a score (:func:`published_models`)."""
    return '\n\n'.join(_score_table(published, table) for table in SCORES if score_rows(published, table))


def load_sizes(docs: Path) -> pd.DataFrame:
    """What was counted: ``config``, ``parameters`` in millions, ``input`` and giga ``flops``, as printed."""
    return pd.read_csv(docs / 'data/zoo.csv', dtype=str)


def size_rows(sizes: pd.DataFrame, published: dict[str, dict]) -> dict[str, tuple[str, ...]]:
    """By config: parameters, the paper's, the input, FLOPs, the paper's, and whatever columns are left."""
    rows = {}
    for config, parameters, of, flops, *more in sizes.itertuples(index=False):
        papers = published.get(config, {})
        millions, giga = _number(papers.get('Parameters'), 1e6), _number(papers.get('FLOPs'), 1e9)
        rows[config] = (parameters, millions, of, flops, giga, *more)
    return rows


def page_texts(docs: Path, published: dict[str, dict]) -> dict[str, str]:
    """The tables of ``docs/zoo.md``, by the names of their places: sizes and scores of a library's configs."""
    sizes, texts = load_sizes(docs), dict(zoo_by_area=_score_table(published, 'by_area'))
    for library, (height, width) in SHAPES.items():
        scores, none = score_rows(published, library), '–' * (len(SCORES[library]) + 1)
        rows = size_rows(sizes[sizes.input == f'{width}×{height}'], published)
        table = [
            (f'[{name}](../configs/{name}.py)', _both(*row[:2]), _both(*row[3:]), *scores.get(name, none))
            for name, row in rows.items()
        ]
        header = ('config', 'parameters, M (paper)', 'GFLOPs (paper)', *SCORES[library], 'printed in')
        texts[f'zoo_{library}'] = markdown(table, header)
    return texts


def publish(docs: Path, counted: pd.DataFrame, published: dict[str, dict]) -> None:
    """Puts counted rows into ``docs/data/zoo.csv``, and writes the tables of ``docs/zoo.md``."""
    kept = load_sizes(docs)
    table = pd.concat([kept[~kept.config.isin(counted.config)], counted[kept.columns]])
    write_table(table.sort_values('config'), docs / 'data/zoo.csv')
    fill_page(docs / 'zoo.md', benchmark=page_texts(docs, published).get)


def _number(count: Optional[float], unit: float) -> str:
    return f'{count / unit:.4g}' if count else '–'


def _score_table(published: dict[str, dict], table: str) -> str:
    rows = [(name, *cells) for name, cells in score_rows(published, table).items()]
    return markdown(rows, ('config', *SCORES[table], 'printed in'))


def _both(own: str, papers: str) -> str:
    return own if papers == '–' else f'{own} ({papers})'


def _scores(values: Sequence[Optional[float]]) -> str:
    first, *others = ('–' if value is None else f'{value:.1f}' for value in values)
    return _both(first, ', '.join(others).rstrip('–, ') or '–')


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command line.

    Raises:
        UsageError: If no config has such a name, or the image is too small.
    """
    parser = argparse.ArgumentParser(
        description="Prints parameters and FLOPs of the configs beside the papers' figures, as a Markdown table."
    )
    add = parser.add_argument
    add('names', nargs='*', metavar='NAME', help='configs whose name contains this, as in mask_rcnn (default: all)')
    add('--shape', nargs=2, type=int, metavar=('H', 'W'), help=f"size of the image (default: the papers', {SHAPES})")
    add('--no-flops', action='store_true', help='leave out FLOPs, which take a minute for a detector')
    add('--scores', action='store_true', help="print the papers' scores instead")
    add('--publish', action='store_true', help='keep what is counted in docs/data, and write the tables of docs/zoo.md')
    args = parser.parse_args(arguments)
    if args.shape and min(args.shape) < 32:
        raise UsageError('--shape needs at least 32 rows and 32 columns.')
    if args.publish and args.shape:
        raise UsageError('--publish is for the sizes that papers count at; leave --shape out.')
    published, paths = published_models(ROOT / 'model-index.yml'), sorted((ROOT / 'configs').glob('*.py'))
    chosen = [path for path in paths if not args.names or any(name in path.stem for name in args.names)]
    if not chosen:
        raise UsageError(f'No config is called {" or ".join(args.names)}; they are in {ROOT / "configs"}.')
    be_quiet()
    rows = []
    for path in () if args.scores else chosen:
        print(f'{path.stem} …', file=sys.stderr, flush=True)
        cfg = load_config(str(path))
        shape = args.shape or SHAPES[cfg.default_scope]
        size = measure(cfg, shape, not args.no_flops)
        giga = (_number(count, 1e9) for count in (size.flops, size.kernel, size.inverse))
        rows.append((path.stem, f'{size.parameters / 1e6:.2f}', f'{shape[1]}×{shape[0]}', *giga))
    counted = pd.DataFrame(rows, columns=['config', 'parameters', 'input', 'flops', 'kernel', 'inverse'])
    if args.scores:
        print(score_tables({path.stem: published[path.stem] for path in chosen if path.stem in published}))
    else:
        table = size_rows(counted, published).items()
        print(markdown([(name, *row) for name, row in table], (*HEADER, 'of which kernel products', 'the inverse')))
    if args.publish:
        publish(ROOT / 'docs', counted[counted.flops != '–'], published)


if __name__ == '__main__':
    raise SystemExit(command_line(main))
