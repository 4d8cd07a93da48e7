"""Trains small detectors on large scenes with and without a limit of the bottleneck tokens, and scores them.

    python -m benchmarks.limit_scores --evidence work_dirs/evidence

The scenes are those of the evidence, 800 pixels a side, where the sky alone tells day from night. Training goes on from
the detectors of the evidence, whose images are too small for a limit. Interrupted, the same command goes on.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import cv2
import numpy as np
import pandas as pd
from mmengine.runner import Runner
from tabulate import tabulate

from mmsoft.apis.cli import command_line
from mmsoft.attention import SOFTAttention
from mmsoft.attention.measure import without_attention
from mmsoft.datasets.shapes import CLASSES, SKY_METAINFO, add_scene, empty_coco, named_by_sky
from mmsoft.datasets.shapes_scene import SKIES, Canvas

from .common import ROOT, be_quiet, commit, read_table, write_table
from .evidence.rows import METHODS
from .evidence.scenes import make_config
from .speed_report import fill_page
from .worker import peak, reset_peak

SIDE, COUNTS, ITERATIONS = 800, dict(train=80, val=30), 40
LIMITS, WITHOUT = (None, 400, 196, 100, 49, 16), -1


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


def train(name: str, seed: int, limit: Optional[int], start: str, root: Path) -> Runner:
    """Goes on with the training of a detector of the evidence on the large scenes, and returns its runner."""
    method = METHODS['retinanet']._replace(network=name, batch_size=2, lr=5e-4)
    work = root / f'{name}_{limit or "none"}_seed{seed}'
    cfg = make_config(method, seed, str(root), str(work), ITERATIONS)
    cfg.model.backbone.attention.bottleneck_limit = limit
    cfg.resume = (work / 'last_checkpoint').exists()
    cfg.load_from = None if cfg.resume else f'{start}/architecture_{name}_seed{seed}/iter_450.pth'
    cfg.test_dataloader.batch_size = 1
    runner = Runner.from_cfg(cfg)
    runner.train()
    return runner


def score(runner: Runner, limit: Optional[int]) -> dict[str, float]:
    """Scores with a limit: of boxes, CPU seconds an image, and peak memory in bytes."""
    for attention in runner.model.modules():
        if isinstance(attention, SOFTAttention):
            attention.limit = limit
    before, start = reset_peak('cpu'), time.process_time()
    found = runner.test()
    seconds = (time.process_time() - start) / len(runner.test_dataloader)
    memory = float('nan') if before is None else peak('cpu') - before
    return dict(ap=found['coco/bbox_mAP'], ap50=found['coco/bbox_mAP_50'], seconds=seconds, memory=memory)


def scores_text(table: pd.DataFrame) -> str:
    """Markdown: AP by limit, its mean, minimum and maximum over seeds, and time of the first kind."""
    by = table.groupby(['limit', 'trained'])
    lines = []
    for limit in (*(one or 0 for one in LIMITS), WITHOUT):
        cells = ['without attention' if limit == WITHOUT else limit or 'none']
        for trained, value in itertools.product((0, 100), ('ap', 'ap50')):
            found = by.get_group((limit, trained))[value]
            cells.append(f'{found.mean():.3f} ({found.min():.3f}–{found.max():.3f})')
        lines.append([*cells, f'{by.get_group((limit, 0)).seconds.median():.2f}'])
    scores = [f'{score}, trained {how}' for how in ('without a limit', 'with 100') for score in ('AP', 'AP50')]
    return tabulate(lines, ['limit', *scores, 'CPU seconds an image'], tablefmt='github', disable_numparse=True)


def main(arguments: Optional[Sequence[str]] = None, docs: Path = ROOT / 'docs') -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--evidence', default='work_dirs/evidence', help='folder of the small detectors (default: %(default)s)')
    add('--seeds', type=int, nargs='+', default=[0, 1, 2], help='default: 0 1 2')
    add('--out-dir', type=Path, default=Path('work_dirs/limit'), help='default: %(default)s')
    add(
        '--publish', action='store_true', help='also write docs/data/limit_scores.csv, and table and figure of the page'
    )
    args = parser.parse_args(arguments)
    be_quiet()
    if not (args.out_dir / 'sky/val.json').exists():
        draw(args.out_dir)
    file = args.out_dir / 'limit_scores.csv'
    table = read_table(file) if file.exists() else pd.DataFrame(columns=['seed', 'trained'])
    for seed, trained in itertools.product(args.seeds, (None, 100)):
        if ((table.seed == seed) & (table.trained == (trained or 0))).any():
            continue
        runner = train('soft_norm', seed, trained, args.evidence, args.out_dir)
        common = dict(commit=commit(), seed=seed, trained=trained or 0)
        rows = [dict(common, limit=limit or 0, **score(runner, limit)) for limit in LIMITS]
        with without_attention(runner.model.backbone):
            rows.append(dict(common, limit=WITHOUT, **score(runner, 100)))
        table = pd.concat([table, pd.DataFrame(rows)]) if len(table) else pd.DataFrame(rows)
        write_table(table, file)
    if args.publish:
        write_table(table, docs / 'data/limit_scores.csv')
        fill_page(docs / 'limit.md', dict(limit_scores=scores_text(table)))
        subprocess.run([sys.executable, docs / 'figures/speed.py'], check=True)


if __name__ == '__main__':
    raise SystemExit(command_line(main))
