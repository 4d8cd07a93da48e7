"""Measures the tables of docs/limit.md: what a limit of the bottleneck tokens changes.

    python -m benchmarks.limit_page maps photograph.png --trained NETWORK WEIGHTS CONFIG CHECKPOINT
    python -m benchmarks.limit_page scores --evidence work_dirs/evidence

``maps`` compares the maps of SOFT-Tiny, with fresh weights, and of trained networks. ``scores`` trains detectors on
scenes of the evidence, but 800 pixels a side, with and without a limit. Training goes on from the detectors of the
evidence, whose images are too small for one.

Results are kept in work_dirs/limit, and what is there is not measured again.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import cv2
import numpy as np
import pandas as pd
import torch
from matplotlib import cbook
from mmengine.registry import MODELS
from mmengine.runner import Runner
from torch import Tensor

from mmsoft.apis.cli import command_line
from mmsoft.attention.measure import without_attention
from mmsoft.datasets.shapes import CLASSES, SKY_METAINFO, add_scene, empty_coco
from mmsoft.datasets.shapes_scene import SKIES, Canvas, named_by_sky
from mmsoft.utils.config import load_config

from .common import ROOT, be_quiet, commit, fill_page, markdown, read_table, spread, write_table
from .evidence.methods import METHODS
from .evidence.scenes import make_config
from .figures.inputs import normalised
from .limit import compare, set_limit
from .speed import size
from .worker import peak, reset_peak

Row = dict[str, Any]
GAMMAS, MAP_LIMITS = (0.3, 0.6, 0.9, 1.0), (400, 100)
SIDE, COUNTS, ITERATIONS = 800, dict(train=80, val=30), 40
LIMITS, WITHOUT = (None, 400, 196, 100, 49, 16), -1  # in the table, no limit is 0 and no attention is -1
MAPS_KEY, SCORES_KEY = ('size', 'network', 'weights', 'image'), ('seed', 'trained')


def add_rows(file: Path, key: Row, measure: Callable[[], Iterable[Row]]) -> None:
    """Adds what is measured under a key to a CSV file, unless it has rows of that key."""
    table = read_table(file) if file.exists() else pd.DataFrame(columns=[*key])
    if not (table[[*key]] == pd.Series(key)).all(axis=1).any():
        rows = pd.DataFrame([dict(key, commit=commit(), **row) for row in measure()])
        write_table(pd.concat([table, rows]) if len(table) else rows, file)


def measure_maps(args: argparse.Namespace, file: Path) -> None:
    """``map1``, ``map2``, … by size, network, weights, image and limit: the relative change of each map."""
    images = [] if args.only else ['noise', cbook.get_sample_data('grace_hopper.jpg', asfileobj=False)]
    for (name, weights, cfg), image in itertools.product(networks(args.gammas, args.trained), [*images, *args.images]):
        key = dict(zip(MAPS_KEY, ('{}×{}'.format(*args.size), name, weights, Path(image).stem)))
        add_rows(file, key, lambda: changes(cfg, picture(image, args.size)))


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
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    pixels = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=method)
    return normalised(torch.from_numpy(pixels[: hw[0], : hw[1], ::-1].copy()).float())


def changes(cfg: dict, image: Tensor) -> Iterator[Row]:
    """The changes of a network's maps with each limit; of maps that are not finite, infinite."""
    torch.manual_seed(0)
    backbone = MODELS.build(cfg)
    backbone.init_weights()
    for limit, found, *_ in compare(backbone.eval(), image, MAP_LIMITS, runs=0):
        finite = np.nan_to_num(np.round(found, 6), nan=np.inf)  # pandas passes over NaN
        if limit:
            yield dict(limit=limit, **{f'map{index}': change for index, change in enumerate(finite, 1)})


def maps_text(table: pd.DataFrame) -> str:
    """Markdown: the largest change over all images of each map, and of all maps, for each network and limit."""
    maps, case = [name for name in table if name.startswith('map')], [*MAPS_KEY[:3]]
    worst = table.groupby([*case, 'limit'], sort=False)[maps].max()
    cells = {
        key: f'{row.max():.1%} ({" / ".join(f"{100 * change:.2g}" for change in row.dropna())})'
        for key, row in worst.iterrows()
    }
    images = table.groupby(case, sort=False).image.nunique()
    lines = [(*key, count, *(cells.get((*key, limit), '–') for limit in MAP_LIMITS)) for key, count in images.items()]
    header = ['image', 'network', 'weights', 'images', *(f'limit {limit}: worst (each map, %)' for limit in MAP_LIMITS)]
    return markdown(lines, header)


def measure_scores(args: argparse.Namespace, file: Path) -> None:
    """``ap``, ``ap50``, CPU ``seconds`` and peak ``memory`` of an image, by seed, limit in training, and limit."""
    if not (args.out_dir / 'sky/val.json').exists():
        draw(args.out_dir)
    for seed, trained in itertools.product(args.seeds, (None, 100)):
        key = dict(zip(SCORES_KEY, (seed, trained or 0)))
        add_rows(file, key, lambda: scores(train(seed, trained, args.evidence, args.out_dir)))


def draw(root: Path) -> None:
    """Writes the scenes, of objects as large as the detectors know them."""
    for stream, (split, count) in enumerate(COUNTS.items()):
        coco, folder = empty_coco(SKY_METAINFO['classes']), root / 'sky' / split
        folder.mkdir(parents=True, exist_ok=True)
        for index in range(count):
            rng, night = np.random.default_rng([24, stream, index]), index % 2
            canvas = Canvas(rng, SIDE, SIDE)
            canvas.paint_sky([*SKIES][night])
            for _ in range(rng.integers(10, 30)):
                canvas.place(int(rng.integers(len(CLASSES))), rng.uniform(14, 60))
            scene = canvas.scene()
            cv2.imwrite(str(folder / f'{index}.jpg'), scene.image)
            add_scene(coco, f'{index}.jpg', named_by_sky(scene, night))
        (root / f'sky/{split}.json').write_text(json.dumps(coco))


def train(seed: int, limit: Optional[int], start: str, root: Path) -> Runner:
    """Goes on with the training of a detector of the evidence on the large scenes, and returns its runner."""
    work = root / f'soft_norm_{limit or "none"}_seed{seed}'
    cfg = make_config(METHODS['retinanet']._replace(batch_size=2, lr=5e-4), seed, str(root), str(work), ITERATIONS)
    cfg.model.backbone.attention.bottleneck_limit = limit
    cfg.resume = (work / 'last_checkpoint').exists()
    cfg.load_from = None if cfg.resume else f'{start}/architecture_soft_norm_seed{seed}/iter_450.pth'
    cfg.test_dataloader.batch_size = 1
    runner = Runner.from_cfg(cfg)
    runner.train()
    return runner


def scores(runner: Runner) -> Iterator[Row]:
    """Scores of boxes, CPU seconds an image, and peak memory in bytes, with each limit and without attention."""
    for limit in LIMITS:
        yield dict(limit=limit or 0, **_score(runner, limit))
    with without_attention(runner.model.backbone):
        yield dict(limit=WITHOUT, **_score(runner, 100))


def _score(runner: Runner, limit: Optional[int]) -> Row:
    set_limit(runner.model, limit)
    before, start = reset_peak('cpu'), time.process_time()
    found = runner.test()
    seconds = (time.process_time() - start) / len(runner.test_dataloader)
    memory = float('nan') if before is None else peak('cpu') - before
    return dict(ap=found['coco/bbox_mAP'], ap50=found['coco/bbox_mAP_50'], seconds=seconds, memory=memory)


def scores_text(table: pd.DataFrame) -> str:
    """Markdown: AP by limit, its mean, minimum and maximum over seeds, and time of the first kind."""
    by, lines = table.groupby(['limit', 'trained']), []
    for limit in (*(one or 0 for one in LIMITS), WITHOUT):
        name = 'without attention' if limit == WITHOUT else limit or 'none'
        cells = [spread(by.get_group((limit, trained))[value]) for trained in (0, 100) for value in ('ap', 'ap50')]
        lines.append([name, *cells, f'{by.get_group((limit, 0)).seconds.median():.2f}'])
    header = [f'{score}, trained {how}' for how in ('without a limit', 'with 100') for score in ('AP', 'AP50')]
    return markdown(lines, ['limit', *header, 'CPU seconds an image'])


def main(arguments: Optional[Sequence[str]] = None, docs: Path = ROOT / 'docs') -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = parser.add_subparsers(dest='table', required=True)
    of_maps, of_scores = tables.add_parser('maps'), tables.add_parser('scores')
    add = of_maps.add_argument
    add('images', nargs='*', metavar='PHOTOGRAPH', help="besides matplotlib's and noise")
    add('--only', action='store_true', help='without those two')
    add('--trained', nargs=4, action='append', default=[], metavar=('NETWORK', 'WEIGHTS', 'CONFIG', 'CHECKPOINT'))
    add('--size', type=size, default=(800, 1344), help='default: 800x1344')
    add('--gammas', type=float, nargs='*', default=GAMMAS, help="of SOFT-Tiny's fresh weights (default: all four)")
    of_maps.set_defaults(measure=measure_maps, text=maps_text, name='limit.csv', key=[*MAPS_KEY, 'limit'])
    add = of_scores.add_argument
    add('--evidence', default='work_dirs/evidence', help='folder of the small detectors (default: %(default)s)')
    add('--seeds', type=int, nargs='+', default=[0, 1, 2], help='default: 0 1 2')
    of_scores.set_defaults(
        measure=measure_scores, text=scores_text, name='limit_scores.csv', key=[*SCORES_KEY, 'limit']
    )
    for one in (of_maps, of_scores):
        one.add_argument('--out-dir', type=Path, default=Path('work_dirs/limit'), help='default: %(default)s')
        one.add_argument('--publish', action='store_true', help='put the rows into docs/data, and write the page')
    args = parser.parse_args(arguments)
    be_quiet()
    args.measure(args, args.out_dir / args.name)
    table, published = read_table(args.out_dir / args.name), docs / 'data' / args.name
    if args.publish:
        if published.exists():
            table = pd.concat([read_table(published), table]).drop_duplicates(args.key, keep='last')
        write_table(table, published)
        fill_page(docs / 'limit.md', benchmark={f'limit_{args.table}': args.text(table)}.get)
        subprocess.run([sys.executable, docs / 'figures/speed.py'], check=True)
    print(args.text(table))


if __name__ == '__main__':
    raise SystemExit(command_line(main))
