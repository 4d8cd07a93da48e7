"""Publishes how much a limit of the bottleneck tokens changes the maps of SOFT-Tiny and of trained networks.

    python -m benchmarks.limit_table photograph.png --trained NETWORK WEIGHTS CONFIG CHECKPOINT

What docs/data/limit.csv holds is not repeated; delete it to measure anew.
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

import cv2
import pandas as pd
import torch
from matplotlib import cbook
from mmengine.registry import MODELS
from tabulate import tabulate
from torch import Tensor

from mmsoft.apis.cli import command_line
from mmsoft.utils.config import load_config

from .common import ROOT, be_quiet, read_table, write_table
from .figures.inputs import normalised
from .limit import compare
from .speed import size
from .speed_report import fill_page

GAMMAS, LIMITS = (0.3, 0.6, 0.9, 1.0), (400, 100)
KEY = ['size', 'network', 'weights', 'image']


def networks(gammas: Sequence[float], trained: Sequence[Sequence[str]]) -> Iterator[tuple[str, str, dict]]:
    """Name, weights and config: SOFT-Tiny with weights γ of the bottleneck's LayerNorm, and backbones of detectors."""
    for gamma, norm in itertools.product(gammas, (True, False)):
        attention = dict(type='SOFTAttention', norm=norm, initial_gamma=gamma)
        cfg = dict(type='mmsoft.SOFT', arch='tiny', attention=attention)
        yield f'SOFT-{"Norm-" * norm}Tiny', f'fresh, γ = {gamma:g}', cfg
    for name, weights, config, checkpoint in trained:
        start = dict(type='Pretrained', checkpoint=checkpoint, prefix='backbone.')
        yield name, weights, dict(load_config(config).model.backbone, _scope_='mmsoft', init_cfg=start)


def picture(image: str, hw: tuple[int, int]) -> Tensor:
    """A photograph, cut to the shape and resized, or ``'noise'``: (1, 3, H, W)."""
    if image == 'noise':
        return torch.randn(1, 3, *hw, generator=torch.Generator().manual_seed(0))
    pixels = cv2.imread(image)
    scale = max(hw[0] / pixels.shape[0], hw[1] / pixels.shape[1])
    pixels = cv2.resize(
        pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    )
    return normalised(torch.from_numpy(pixels[: hw[0], : hw[1], ::-1].copy()).float())


def maps_text(table: pd.DataFrame) -> str:
    """Markdown: the largest change over all images of each map, and of all maps, for each network and limit."""
    maps = [name for name in table if name.startswith('map')]
    cells = table.groupby(['size', 'network', 'weights', 'limit'], sort=False)[maps].max()
    worst = cells.max(1).map('{:.1%}'.format).unstack('limit')
    shown = cells.apply(lambda row: ' / '.join(f'{100 * one:.2g}' for one in row.dropna()), axis=1).unstack('limit')
    images = table.groupby(['size', 'network', 'weights'], sort=False).image.nunique()
    lines = [
        (*case, images[case], *(f'{worst[limit][case]} ({shown[limit][case]})' for limit in LIMITS))
        for case in images.index
    ]
    header = ['image', 'network', 'weights', 'images', *(f'limit {limit}: worst (each map, %)' for limit in LIMITS)]
    return tabulate(lines, header, tablefmt='github', disable_numparse=True)


def main(arguments: Optional[Sequence[str]] = None, docs: Path = ROOT / 'docs') -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('images', nargs='*', metavar='PHOTOGRAPH', help="besides matplotlib's and noise")
    add('--only', action='store_true', help='without those two')
    add('--trained', nargs=4, action='append', default=[], metavar=('NETWORK', 'WEIGHTS', 'CONFIG', 'CHECKPOINT'))
    add('--size', type=size, default=(800, 1344), help='default: 800x1344')
    add('--gammas', type=float, nargs='*', default=GAMMAS, help="of SOFT-Tiny's fresh weights (default: all four)")
    args = parser.parse_args(arguments)
    be_quiet()
    file = docs / 'data/limit.csv'
    table = read_table(file) if file.exists() else pd.DataFrame(columns=KEY)
    images = [] if args.only else ['noise', cbook.get_sample_data('grace_hopper.jpg', asfileobj=False)]
    for name, weights, cfg in networks(args.gammas, args.trained):
        for image in [*images, *args.images]:
            row = dict(zip(KEY, ('{}×{}'.format(*args.size), name, weights, Path(image).stem)))
            if (table[KEY] == pd.Series(row)).all(axis=1).any():
                continue
            torch.manual_seed(0)
            backbone = MODELS.build(cfg)
            backbone.init_weights()
            for limit, changes, *_ in compare(backbone.eval(), picture(image, args.size), LIMITS, runs=0):
                found = {f'map{index}': round(change, 6) for index, change in enumerate(changes, 1)}
                if limit:
                    table = pd.concat([table, pd.DataFrame([dict(row, limit=limit, **found)])])
            write_table(table, file)
    fill_page(docs / 'limit.md', dict(limit_maps=maps_text(table)))


if __name__ == '__main__':
    raise SystemExit(command_line(main))
