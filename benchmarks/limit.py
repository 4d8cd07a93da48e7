"""What a limit of the bottleneck tokens changes: in a network of yours, and the tables of docs/limit.md.

    python -m benchmarks.limit images configs/retinanet_soft_small_1x.py CHECKPOINT IMAGE_OR_FOLDER --limits 400 100
    python -m benchmarks.limit maps noise grace_hopper photograph.png --trained NETWORK WEIGHTS CONFIG CHECKPOINT
    python -m benchmarks.limit scores --evidence work_dirs/evidence
    python -m benchmarks.limit trees soft_norm_mix
    python -m benchmarks.limit gradients

``images`` prints for each limit (0 is none) the largest change of each map, the largest memory and the mean time.
``maps`` compares the maps of SOFT-Tiny, with fresh weights, and of trained networks. ``scores`` trains detectors on
scenes of the evidence, but 800 pixels a side, with and without a limit. Training goes on from the detectors of the
evidence, whose images are too small for one. ``trees`` tests detectors of projects/trees, whose crops are, too, on a
whole photograph. ``gradients`` compares gradients at an image, too, which the gain enters as a constant.

Rows that are measured again replace those that are there; a training that was interrupted goes on.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Optional

import cv2
import numpy as np
import pandas as pd
import torch
from matplotlib import cbook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from mmsoft.apis.prediction import find_images, prepare
from mmsoft.apis.tasks import build_task
from mmsoft.attention import SOFTAttention
from mmsoft.attention.measure import without_attention
from mmsoft.datasets.shapes import CLASSES, SKY_METAINFO, add_scene, empty_coco
from mmsoft.datasets.shapes_scene import SKIES, Canvas, named_by_sky
from mmsoft.engine.checkpoints import latest_checkpoint
from mmsoft.utils import UsageError
from mmsoft.utils.cli import command_line
from mmsoft.utils.config import load_config

from .common import ROOT, be_quiet, commit, fill_page, markdown, read_table, spread, write_table
from .contenders import CONTENDERS
from .evidence.methods import METHODS
from .figures.inputs import build, normalised, trained
from .speed import positive, size
from .worker import with_peak

Row = dict[str, Any]
PHOTOGRAPH, NOISE = 'grace_hopper', 'noise'
GAMMAS, MAP_LIMITS = (0.3, 0.6, 0.9, 1.0), (400, 100)
SIDE, COUNTS, ITERATIONS = 800, dict(train=80, val=30), 40
LIMITS, WITHOUT = (0, 400, 196, 100, 49, 16), -1  # no limit is 0 and no attention is -1
NETWORK = ['size', 'network', 'weights']


def set_limit(model: nn.Module, limit: int) -> None:
    """Limits the bottleneck tokens of all attentions of a model, which raises UsageError if it has none; 0 is none."""
    attentions = [module for module in model.modules() if isinstance(module, SOFTAttention)]
    if not attentions:
        raise UsageError(f'{type(model).__name__} has no SOFTAttention, whose tokens could be limited.')
    for attention in attentions:
        attention.limit = limit or None


@torch.no_grad()
def compare(backbone: nn.Module, images: Tensor, limits: Sequence[int], runs: int = 3) -> Iterator[dict[str, float]]:
    """Yields for ``limit`` 0 and the others ``map1``, ``map2`` …: each map's change, its norm over that of the map.

    And peak ``bytes`` and, of so many more runs, mean ``seconds``.
    """
    wanted = None
    set_limit(backbone, 0)
    backbone(images)  # what a process takes once is not the memory of the first limit
    for limit in (0, *limits):
        set_limit(backbone, limit)
        maps, memory = with_peak(lambda: backbone(images), images.device.type)
        wanted = wanted or maps
        changes = {f'map{index}': float((a - b).norm() / b.norm()) for index, (a, b) in enumerate(zip(maps, wanted), 1)}
        names = dict(backbone=backbone, images=images)
        timer = Timer('backbone(images)', globals=names, num_threads=torch.get_num_threads())  # its default is 1
        yield dict(limit=limit, **changes, bytes=memory, seconds=timer.timeit(runs).mean if runs else 0.0)


def measure_images(args: argparse.Namespace) -> str:
    """The table of a trained network."""
    task = build_task(load_config(args.config), args.checkpoint)
    model, rows = task.inferencer.model.eval(), []
    for _, _, prepared in prepare(task, find_images(args.source), []):
        images = model.data_preprocessor(task.collate([prepared]), False)['inputs']
        rows += compare(model.backbone, images, args.limits)
    by = as_table(rows).groupby('limit', sort=False)
    return by.max().assign(seconds=by.seconds.mean()).to_markdown(floatfmt='.4g')


def as_table(rows: Iterable[Row]) -> pd.DataFrame:
    """What :func:`compare` yields; of maps that are not finite the change is infinite, as pandas passes over NaN."""
    table = pd.DataFrame(rows)
    maps = table.filter(like='map').columns
    return table.assign(**table[maps].fillna(np.inf))


def put_rows(file: Path, key: Row, rows: Iterable[Row]) -> None:
    """Puts rows of a key into a CSV file, in place of those that it has."""
    new = pd.DataFrame([dict(key, commit=commit(), **row) for row in rows])
    if file.exists():
        table = read_table(file)
        new = pd.concat([table[(table[[*key]] != pd.Series(key)).any(axis=1)], new])
    write_table(new, file)


def measure_maps(args: argparse.Namespace, file: Path) -> None:
    """``map1``, ``map2``, … by size, network, weights, image and limit: the relative change of each map."""
    for (name, weights, cfg), image in itertools.product(networks(args.gammas, args.trained), args.images):
        key = dict(zip(NETWORK, ('{}×{}'.format(*args.size), name, weights)), image=Path(image).stem)
        put_rows(file, key, changes(cfg, read(image, args.size)))


def networks(gammas: Sequence[float], detectors: Sequence[Sequence[str]]) -> Iterator[tuple[str, str, dict]]:
    """Name, weights and config: SOFT-Tiny with weights γ of the bottleneck's LayerNorm, and backbones of detectors."""
    for gamma, norm in itertools.product(gammas, (True, False)):
        attention = dict(type='SOFTAttention', norm=norm, initial_gamma=gamma)
        cfg = dict(type='mmsoft.SOFT', arch='tiny', attention=attention)
        yield f'SOFT-{"Norm-" * norm}Tiny', f'fresh, γ = {gamma:g}', cfg
    for name, weights, *files in detectors:
        yield name, weights, trained(*files)


def read(image: str, hw: tuple[int, int]) -> Tensor:
    """Noise, matplotlib's photograph or a file, cut to the shape and resized: (1, 3, H, W)."""
    if image == NOISE:
        return torch.randn(1, 3, *hw, generator=torch.Generator().manual_seed(0))
    pixels = cv2.imread(cbook.get_sample_data('grace_hopper.jpg', asfileobj=False) if image == PHOTOGRAPH else image)
    if pixels is None:
        raise UsageError(f'{image} is no image that can be read; the others are {NOISE} and {PHOTOGRAPH}.')
    scale = max(hw[0] / pixels.shape[0], hw[1] / pixels.shape[1])
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    pixels = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=method)
    return normalised(torch.from_numpy(pixels[: hw[0], : hw[1], ::-1].copy()).float())


def changes(cfg: dict, image: Tensor) -> list[Row]:
    """The changes of a network's maps with each limit."""
    table = as_table(compare(build(cfg), image, MAP_LIMITS, runs=0)).drop(columns=['bytes', 'seconds'])
    return table[1:].round(6).to_dict('records')


def maps_text(table: pd.DataFrame) -> str:
    """Markdown: the largest change over all images of each map, and of all maps, for each network and limit."""
    maps = [name for name in table if name.startswith('map')]
    worst = table.groupby([*NETWORK, 'limit'], sort=False)[maps].max()
    cells = {
        key: f'{row.max():.1%} ({" / ".join(f"{100 * change:.2g}" for change in row.dropna())})'
        for key, row in worst.iterrows()
    }
    images = table.groupby(NETWORK, sort=False).image.nunique()
    lines = [(*key, count, *(cells.get((*key, limit), '–') for limit in MAP_LIMITS)) for key, count in images.items()]
    header = ['image', 'network', 'weights', 'images', *(f'limit {limit}: worst (each map, %)' for limit in MAP_LIMITS)]
    return markdown(lines, header)


def measure_scores(args: argparse.Namespace, file: Path) -> None:
    """``ap``, ``ap50``, CPU ``seconds`` and peak ``memory`` of an image, by seed, limit in training, and limit."""
    if not (args.out_dir / 'sky/val.json').exists():
        draw(args.out_dir)
    for seed, limit in itertools.product(range(3), (0, 100)):
        runner = train(seed, limit, args.evidence, args.out_dir)
        put_rows(file, dict(seed=seed, trained=limit), scores(runner))


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


def train(seed: int, limit: int, start: str, root: Path) -> Runner:
    """Goes on with the training of a detector of the evidence on the large scenes, and returns its runner."""
    work = root / f'soft_norm_{limit or "none"}_seed{seed}'
    method = METHODS['retinanet']._replace(batch_size=2, lr=5e-4, iterations=ITERATIONS)
    cfg = method.make_config(seed, root, work)
    cfg.model.backbone.attention.bottleneck_limit = limit or None
    cfg.resume = (work / 'last_checkpoint').exists()
    cfg.load_from = None if cfg.resume else f'{start}/architecture_soft_norm_seed{seed}/iter_450.pth'
    cfg.test_dataloader.batch_size = 1
    runner = Runner.from_cfg(cfg)
    runner.train()
    return runner


def scores(runner: Runner) -> Iterator[Row]:
    """Scores of boxes, CPU seconds an image, and peak memory in bytes, with each limit and without attention."""
    runner.test()  # what a process takes once is not the memory of the first limit
    for limit in (*LIMITS, WITHOUT):
        set_limit(runner.model, 100 if limit == WITHOUT else limit)
        with without_attention(runner.model.backbone) if limit == WITHOUT else nullcontext():
            start = time.process_time()
            found, memory = with_peak(runner.test)
            seconds = (time.process_time() - start) / len(runner.test_dataloader)
        ap = dict(ap=found['coco/bbox_mAP'], ap50=found['coco/bbox_mAP_50'])
        yield dict(limit=limit, **ap, seconds=seconds, memory=memory)


def scores_text(table: pd.DataFrame) -> str:
    """Markdown: AP by limit, its mean, minimum and maximum over seeds, and time and memory of the first kind."""
    by, lines = table.groupby(['limit', 'trained']), []
    for limit in (*LIMITS, WITHOUT):
        name = 'without attention' if limit == WITHOUT else limit or 'none'
        cells = [spread(by.get_group((limit, trained))[value]) for trained in (0, 100) for value in ('ap', 'ap50')]
        costs = by.get_group((limit, 0))[['seconds', 'memory']].median()
        lines.append([name, *cells, f'{costs.seconds:.2f}', f'{costs.memory / 1e6:.0f}'])
    header = [f'{score}, trained {how}' for how in ('without a limit', 'with 100') for score in ('AP', 'AP50')]
    return markdown(lines, ['limit', *header, 'CPU seconds an image', 'MB'])


def measure_trees(args: argparse.Namespace, file: Path) -> None:
    """``ap50`` of the validation photograph in one view, and CPU ``seconds``, by seed, limit, and whether with gain."""
    from projects.trees.__main__ import CONFIGS, WORK, score

    attention, config = 'model.backbone.attention', str(CONFIGS / f'{args.network}.py')
    cases = [*((limit, True, None) for limit in LIMITS), (100, False, None), (WITHOUT, True, [])]
    for seed, (limit, gain, without) in itertools.product(range(3), cases):
        limited = {f'{attention}.bottleneck_limit': max(limit, 0) or None, f'{attention}.bottleneck_gain': gain}
        checkpoint, start = str(latest_checkpoint(WORK / f'{args.network}_{seed}')), time.process_time()
        options = dict(tta=False, without_attention=without)
        ap50, _ = score(config, checkpoint, args.out_dir / 'trees', 'validation', limited, **options)
        row = dict(ap50=ap50, seconds=time.process_time() - start)
        put_rows(file, dict(network=args.network, seed=seed, limit=limit, gain=gain), [row])


def trees_text(table: pd.DataFrame) -> str:
    """Markdown: AP50 of each seed, their mean, and time, by limit."""
    lines = []
    for (limit, gain), rows in table.groupby(['limit', 'gain'], sort=False):
        name = 'without attention' if limit == WITHOUT else limit or 'none'
        each = ', '.join(f'{ap50:.3f}' for ap50 in rows.ap50)
        mean = f'{rows.ap50.mean():.3f}', f'{rows.seconds.median():.0f}'
        lines.append([f'{name}{"" if gain else ", without the matched gain"}', each, *mean])
    return markdown(lines, ['limit', 'AP50 of three seeds', 'mean', 'CPU seconds'])


def measure_gradients(args: argparse.Namespace, file: Path) -> None:
    """``maps`` and ``gradient``: the largest change of a map, and that of the gradient at the image, with 100 tokens.

    The loss is the sum of the maps with random weights. The network is small, at 512×512, and its weights are random.
    """
    for norm, gamma, image in itertools.product((True, False), GAMMAS, (NOISE, PHOTOGRAPH)):
        attention = dict(type='SOFTAttention', norm=norm, initial_gamma=gamma)
        network, results = build(dict(CONTENDERS['soft_norm_nano'].backbone, attention=attention)), []
        for limit in (0, 100):
            set_limit(network, limit)
            maps = network(pixels := read(image, (512, 512)).requires_grad_())
            random = torch.Generator().manual_seed(0)
            sum((one * torch.randn(one.shape, generator=random)).sum() for one in maps).backward()
            results.append([*maps, pixels.grad])
        *maps, gradient = (float((few - full).norm() / full.norm()) for full, few in zip(*results))
        key = dict(network='SOFT-Norm' if norm else 'SOFT', gamma=gamma, image=image)
        put_rows(file, key, [dict(maps=max(maps), gradient=gradient)])


def gradients_text(table: pd.DataFrame) -> str:
    """Markdown: the largest change of the gradient, and of the maps, over images, by network and γ."""
    worst = table.groupby(['network', 'gamma'], sort=False)[['maps', 'gradient']].max()
    rows = [
        (name, *(f'{row.gradient:.0%} ({row.maps:.1%})' for _, row in rows.iterrows()))
        for name, rows in worst.groupby('network', sort=False)
    ]
    return markdown(rows, ['network', *(f'γ = {gamma:g}' for gamma in dict.fromkeys(table.gamma))])


def main(arguments: Optional[Sequence[str]] = None, docs: Path = ROOT / 'docs') -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = parser.add_subparsers(dest='table', required=True)
    add = tables.add_parser('images').add_argument
    for name in ('config', 'checkpoint', 'source'):
        add(name)
    add('--limits', type=positive, nargs='+', default=[400, 100], help='default: 400 100')
    add = tables.add_parser('maps').add_argument
    add('images', nargs='*', metavar='IMAGE', default=[NOISE, PHOTOGRAPH], help='noise, grace_hopper or files')
    add('--trained', nargs=4, action='append', default=[], metavar=('NETWORK', 'WEIGHTS', 'CONFIG', 'CHECKPOINT'))
    add('--size', type=size, default=(800, 1344), help='default: 800x1344')
    add('--gammas', type=float, nargs='*', default=GAMMAS, help="of SOFT-Tiny's fresh weights (default: all four)")
    small = 'folder of the small detectors (default: %(default)s)'
    tables.add_parser('scores').add_argument('--evidence', default='work_dirs/evidence', help=small)
    tables.add_parser('trees').add_argument(
        'network', help='config of projects/trees, of which three seeds are trained'
    )
    tables.add_parser('gradients')
    for name in TABLES:
        add = tables.choices[name].add_argument
        add('--out-dir', type=Path, default=Path('work_dirs/limit'), help='default: %(default)s')
        add('--publish', action='store_true', help='put the rows into docs/data, and write the page')
    args = parser.parse_args(arguments)
    be_quiet()
    if args.table == 'images':
        print(measure_images(args))
        return
    measure, text, name = TABLES[args.table]
    file = (docs / 'data' if args.publish else args.out_dir) / name
    measure(args, file)
    table = text(read_table(file))
    if args.publish:
        fill_page(docs / 'limit.md', benchmark={f'limit_{args.table}': table}.get)
        subprocess.run([sys.executable, docs / 'figures/speed.py'], check=True)
    print(table)


TABLES: dict[str, tuple[Any, Any, str]] = dict(
    maps=(measure_maps, maps_text, 'limit.csv'),
    scores=(measure_scores, scores_text, 'limit_scores.csv'),
    trees=(measure_trees, trees_text, 'limit_trees.csv'),
    gradients=(measure_gradients, gradients_text, 'limit_gradients.csv'),
)
"""What measures the rows of a table, what makes Markdown of them, and their file."""


if __name__ == '__main__':
    raise SystemExit(command_line(main))
