"""What attention normalisation does to the spectral norm of the bottleneck's inverse (2207.03341, Fig. 5)."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ..inside import bottlenecks, log_missing
from .inputs import BLUE, ORANGE, end_label, new_figure, plain, scenes

TITLE = 'Spectral norms with and without attention normalisation: SOFT-Norm, last block of stage 2'
USES = ('soft_norm',)
STAGE, IMAGES, SIDES = 2, 4, (224, 448, 672, 1024)
INVERSES = dict(exact=('A^{-1}', 'the exact inverse'), newton=('A_{20}', '20 Newton steps, as in the network'))
KINDS = dict(plain=('%s', BLUE, '+'), normalised=('D^{-1/2} %s D^{-1/2}', ORANGE, 'x'))


def norms(matrix: Tensor, alpha: Tensor) -> Iterator[tuple[str, str, Tensor]]:
    r"""Norms :math:`\|V\|_2` and :math:`\|D^{-1/2} V D^{-1/2}\|_2` for V = A⁻¹ and for what 20 Newton steps make of it.

    Yields keys of :data:`INVERSES` and :data:`KINDS`, and norms of shape (h,).

    Args:
        matrix (Tensor): Symmetric positive semidefinite A of shape (h, m, m), float64. D are its row sums.
        alpha (Tensor): Scale of the steps' starting value, shape (h, 1).
    """
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    least = matrix.size(-1) * torch.finfo(matrix.dtype).eps * eigenvalues[:, -1:]
    vectors = matrix.sum(-1, keepdim=True).rsqrt() * vectors
    made = -log_missing(eigenvalues, alpha, 20).expm1() / eigenvalues
    exact, newton = torch.where(eigenvalues > least, 1 / eigenvalues, 0.0), torch.where(eigenvalues > 0, made, 0.0)
    for name, inverse in (('exact', exact), ('newton', newton)):
        yield name, 'plain', inverse.amax(-1)
        yield name, 'normalised', torch.linalg.eigvalsh(vectors * inverse.unsqueeze(-2) @ vectors.mT).amax(-1)


def measure(networks: dict[str, nn.Module]) -> pd.DataFrame:
    """Norms ``value`` of each image and head by ``m``, ``inverse`` and ``kind``."""
    rows = []
    for side in SIDES:
        for number, image in enumerate(scenes(side, IMAGES)):
            last = [one for one in bottlenecks(networks['soft_norm'], image.double()) if one.stage == STAGE][-1]
            rows += [
                dict(m=last.matrix.size(-1), image=number, index=head, inverse=inverse, kind=kind, value=value)
                for inverse, kind, values in norms(last.matrix, last.alpha)
                for head, value in enumerate(values.tolist())
            ]
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, weights: str) -> Figure:
    """A panel an inverse: a mark for an image and head, a line through their means."""
    figure, (panels,) = new_figure(1, 2, 4.8, 4, f'{TITLE}\n{weights}')
    for panel, (inverse, (symbol, title)) in zip(panels, INVERSES.items()):
        for kind, (label, colour, mark) in KINDS.items():
            rows = table[(table.inverse == inverse) & (table.kind == kind)]
            mean = rows.groupby('m').value.mean()
            slope = f'\nm$^{{{np.polyfit(np.log(mean.index), np.log(mean), 1)[0]:.1f}}}$' if len(mean) > 1 else ''
            panel.plot(rows.m, rows.value, mark, color=colour, alpha=0.4, markersize=5)
            panel.plot(mean.index, mean, '-', color=colour)
            end_label(panel, rf'$\Vert {label % symbol} \Vert_2$' + slope, mean.index[-1], mean.iloc[-1], colour)
        plain(
            panel,
            xscale='log',
            yscale='log',
            xlabel='bottleneck tokens m',
            ylabel='spectral norm',
            title=title,
            xlim=(None, 5.5 * table.m.max()),
            ticks=sorted(table.m.unique()),
        )
    return figure
