"""Time of choices in the code, each beside what it replaces: a table of docs/benchmark_method.md.

    python -m benchmarks.parts --publish

Parts of SOFT-Norm-Small and SimA-XCiT-S12/16 for an image of 800×1344, without gradients, on all cores.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import pandas as pd
import torch
from torch.utils.benchmark import Timer

from mmsoft import SOFT
from mmsoft.layers import blocks
from mmsoft.utils.cli import command_line

from .common import ROOT, commit, finish, markdown, processor
from .speed import positive


class Part(NamedTuple):
    """A choice: its name, Python that makes what it needs, and what is timed, as the code does it and otherwise."""

    name: str
    setup: str
    chosen: str
    other: str


_LAYOUTS = (
    'x = torch.randn(1, {channels}, {rows}, {columns})\n'
    'last, first = x.contiguous(memory_format=torch.channels_last), x\n'
)
_FFN = 'ffn, x = network.stages[0].blocks[0].ffn, torch.randn(1, 200 * 336, 64)'
PARTS = (
    Part(
        'stem, channels last : channels first',
        _LAYOUTS.format(channels=3, rows=800, columns=1344) + 'stem = network.stages[0].embed',
        'stem(last)',
        'stem(first)',
    ),
    Part(
        'depthwise 9×9 convolution of values, channels last : channels first',
        _LAYOUTS.format(channels=64, rows=200, columns=336) + 'conv = network.stages[0].blocks[0].attn.conv',
        'conv(last)',
        'conv(first)',
    ),
    Part(
        'feed-forward network of stage 0, 8 MB at a time : the whole map',
        _FFN,
        'ffn(x)',
        'blocks.RUN_ELEMENTS *= 2**20; ffn(x); blocks.RUN_ELEMENTS //= 2**20',
    ),
    Part(
        'feed-forward network of stage 0, 8 MB at a time : 2 MB',
        _FFN,
        'ffn(x)',
        'blocks.RUN_ELEMENTS //= 4; ffn(x); blocks.RUN_ELEMENTS *= 4',
    ),
    Part(
        'ten matrices of 1,050×1,050 plus 1, in place : new ones',
        'x = torch.zeros(10, 1050, 1050)',
        'x.add_(1)',
        'x + 1',
    ),
    Part(
        'l1 norms over 4,200 tokens, sum of absolute values : vector_norm',
        'x = torch.randn(1, 8, 4200, 48)',
        'x.abs().sum(2)',
        'torch.linalg.vector_norm(x, 1, dim=2)',
    ),
)


@torch.no_grad()
def measure(parts: Sequence[Part], rounds: int) -> Iterator[dict[str, Any]]:
    """Yields milliseconds of both ways in turns."""
    network = SOFT('small').eval()
    for part in parts:
        names = dict(torch=torch, network=network, blocks=blocks)
        exec(part.setup, names)
        timers = [Timer(code, globals=names, num_threads=torch.get_num_threads()) for code in part[2:]]
        for index in range(rounds):
            chosen, other = (1000 * timer.blocked_autorange(min_run_time=0.3).median for timer in timers)
            yield dict(part=part.name, round=index, chosen=chosen, other=other, machine=processor(), commit=commit())


def text(table: pd.DataFrame) -> str:
    """Markdown: medians over rounds, and of the rounds' ratios."""
    rows = []
    for name, runs in table.groupby('part', sort=False):
        ratio = (runs.chosen / runs.other).median()
        rows.append((name, f'{runs.chosen.median():.1f}', f'{runs.other.median():.1f}', f'{ratio:.2f}'))
    return markdown(rows, ('chosen : other', 'ms', 'other, ms', 'ratio'))


def main(arguments: Optional[Sequence[str]] = None, docs: Path = ROOT / 'docs') -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=positive, default=5, help='default: %(default)s')
    parser.add_argument('--publish', action='store_true', help='write docs/data and the page')
    args = parser.parse_args(arguments)
    table = pd.DataFrame(measure(PARTS, args.rounds))
    finish('parts', table, text(table), docs if args.publish else None)


if __name__ == '__main__':
    raise SystemExit(command_line(main))
