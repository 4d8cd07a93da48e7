"""Compares a trained network with and without a limit of its bottleneck tokens, on a user's images.

python -m benchmarks.limit configs/retinanet_soft_small_1x.py CHECKPOINT IMAGE_OR_FOLDER --limits 400 100
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Optional

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from mmsoft.apis.cli import command_line
from mmsoft.apis.prediction import find_images, prepare
from mmsoft.apis.tasks import build_task
from mmsoft.attention import SOFTAttention
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config

from .worker import peak, reset_peak


def set_limit(model: nn.Module, limit: Optional[int]) -> None:
    """Limits the bottleneck tokens of all attentions of a model, which raises UsageError if it has none."""
    attentions = [module for module in model.modules() if isinstance(module, SOFTAttention)]
    if not attentions:
        raise UsageError(f'{type(model).__name__} has no SOFTAttention, whose tokens could be limited.')
    for attention in attentions:
        attention.limit = limit


@torch.no_grad()
def compare(backbone: nn.Module, images: Tensor, limits: Sequence[int], runs: int = 3) -> Iterator[tuple]:
    """Yields each limit, None first, the relative change of each map, mean seconds of more runs, and peak bytes."""
    device, wanted = images.device.type, None
    for limit in (None, *limits):
        set_limit(backbone, limit)
        before = reset_peak(device)
        maps = backbone(images)
        memory = float('nan') if before is None else peak(device) - before
        wanted = wanted or maps
        timer = Timer('backbone(images)', globals=dict(backbone=backbone, images=images))
        seconds = timer.timeit(runs).mean if runs else 0.0
        yield limit, [float((a - b).norm() / b.norm()) for a, b in zip(maps, wanted)], seconds, memory


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs the command line, which prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ('config', 'checkpoint', 'source'):
        parser.add_argument(name)
    parser.add_argument('--limits', type=int, nargs='+', default=[400, 100], help='default: 400 100')
    args = parser.parse_args(arguments)
    task = build_task(load_config(args.config), args.checkpoint)
    model = task.inferencer.model.eval()
    rows: dict[Optional[int], list[np.ndarray]] = {}
    for _, _, prepared in prepare(task, find_images(args.source), []):
        images = model.data_preprocessor(task.collate([prepared]), False)['inputs']
        for limit, changes, seconds, memory in compare(model.backbone, images, args.limits):
            rows.setdefault(limit, []).append(np.array([*changes, seconds, memory / 2**20]))
    print('limit | largest change of each map | seconds, mean | MiB, largest')
    for limit, found in rows.items():
        table = np.stack(found)
        changes = ' '.join(f'{change:.4f}' for change in table[:, :-2].max(0))
        print(f'{limit or "none"} | {changes} | {table[:, -2].mean():.3f} | {table[:, -1].max():.0f}')


if __name__ == '__main__':
    raise SystemExit(command_line(main))
