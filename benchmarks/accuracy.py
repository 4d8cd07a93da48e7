"""How exact SOFT's inverse is, beside the published iteration in float64: a table of docs/benchmark_method.md.

    python -m benchmarks.accuracy --publish

Two networks with random weights, three weights γ of the bottleneck's LayerNorm, noise and a photograph.
"""

import argparse
import copy
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Optional

import pandas as pd
import torch
from torch import Tensor, nn

from mmsoft.attention import SOFTAttention
from mmsoft.ops import soft_norm_attention
from mmsoft.utils.cli import command_line

from .common import ROOT, be_quiet, commit, finish, markdown
from .contenders import published_attention
from .figures.inputs import build
from .inside import bottlenecks
from .limit import NOISE, PHOTOGRAPH, read
from .speed import size

GAMMAS, STEPS = (1.0, 0.9, 0.3), 20


@torch.no_grad()
def measure(arch: Any, hw: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Yields for SOFT and SOFT-Norm, each γ and each image what :func:`errors` and :func:`above` say."""
    for norm, gamma, image in itertools.product((False, True), GAMMAS, (NOISE, PHOTOGRAPH)):
        attention = dict(type='SOFTAttention', norm=norm, initial_gamma=gamma)
        network, pixels = build(dict(type='mmsoft.SOFT', arch=arch, attention=attention)), read(image, hw)
        key = dict(network='SOFT-Norm' if norm else 'SOFT', gamma=gamma, image=image, commit=commit())
        yield dict(key, **errors(network, pixels), **above(network, pixels))


def errors(network: nn.Module, image: Tensor) -> dict[str, float]:
    """Of the network and of the ``iteration`` in float32: the largest error of a map, as a part of its largest value.

    Wanted are the maps of the iteration in float64.
    """
    iteration = iterated(network)
    wanted = iterated(network).double()(image.double())

    def error(maps: Sequence[Tensor]) -> float:
        return max(float((one - exact).abs().max() / exact.abs().max()) for one, exact in zip(maps, wanted))

    return dict(error=error(network(image)), iteration=error(iteration(image)))


def iterated(network: nn.Module) -> nn.Module:
    """A copy of a network whose attentions compute as the published ones, with Newton's iteration."""
    network = copy.deepcopy(network)
    for attention in network.modules():
        if isinstance(attention, SOFTAttention):
            attention.product = partial(published_attention, norm=attention.product is soft_norm_attention)
    return network


def above(network: nn.Module, image: Tensor) -> dict[str, float]:
    """``stage0`` …: the part of the eigenvalues λ with αλ² above 2^-20, which the steps invert, of all matrices."""
    parts: dict[str, list[Tensor]] = {}
    for seen in bottlenecks(copy.deepcopy(network).double(), image.double()):
        x = seen.alpha * torch.linalg.eigvalsh(seen.matrix).square()
        parts.setdefault(f'stage{seen.stage}', []).append((x > 0.5**STEPS).flatten())
    return {stage: float(torch.cat(each).double().mean()) for stage, each in parts.items()}


def text(table: pd.DataFrame) -> str:
    """The table as Markdown."""
    stages = [name for name in table if name.startswith('stage')]
    rows = [
        (
            row.network,
            f'{row.gamma:g}',
            'noise' if row.image == NOISE else 'photograph',
            ', '.join(f'{getattr(row, stage):.0%}' for stage in stages),
            f'{row.error:.0e}',
            f'{row.iteration:.0e}',
        )
        for row in table.itertuples()
    ]
    return markdown(rows, ('network', 'γ', 'image', 'above the cut, by stage', 'error', 'error of the iteration'))


def main(arguments: Optional[Sequence[str]] = None, docs: Path = ROOT / 'docs') -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--arch', default='small', help='size of the networks (default: %(default)s)')
    parser.add_argument('--size', type=size, default=(512, 512), help='default: 512')
    parser.add_argument('--publish', action='store_true', help='write docs/data and the page')
    args = parser.parse_args(arguments)
    be_quiet()
    table = pd.DataFrame(measure(args.arch, args.size))
    finish('accuracy', table, text(table), docs if args.publish else None)


if __name__ == '__main__':
    raise SystemExit(command_line(main))
