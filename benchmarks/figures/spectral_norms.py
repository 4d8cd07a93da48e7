"""What attention normalisation does to the spectral norm of the bottleneck's inverse (2207.03341, Fig. 5)."""
from typing import Dict

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mmsoft.ops import newton_filter
from ..inside import inverted_matrices
from .inputs import BLUE, ORANGE, Inputs, new_figure, plain

TITLE = 'Spectral norms with and without attention normalisation, in the last block of SOFT-Norm\'s third stage'
NETWORK, STAGE, IMAGES, SIDES = 'soft_norm', 3, 4, (224, 448, 672, 1024)
INVERSES = dict(exact=('A^{-1}', 'the exact inverse'), newton=('A_{20}', '20 Newton steps, as in the network'))
KINDS = dict(plain=('%s', BLUE, '+'), normalised=('D^{-1/2} %s D^{-1/2}', ORANGE, 'x'))


def norms(matrix: Tensor, alpha: Tensor) -> Dict[str, Dict[str, Tensor]]:
    r""":math:`\|V\|_2` and :math:`\|D^{-1/2} V D^{-1/2}\|_2` for V = A⁻¹ and for what 20 Newton steps make of it.

    Args:
        matrix (Tensor): Symmetric positive semidefinite A of shape (h, m, m), float64. D are its row sums.
        alpha (Tensor): Scale of the steps' starting value, shape (h, 1).

    Returns:
        dict: By ``'exact'`` and ``'newton'``, then by ``'plain'`` and ``'normalised'``, norms of shape (h,).
    """
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    least = matrix.size(-1) * torch.finfo(matrix.dtype).eps * eigenvalues[:, -1:]
    scale = matrix.sum(-1, keepdim=True).rsqrt()
    vectors = scale * vectors
    inverses = dict(exact=torch.where(eigenvalues > least, 1 / eigenvalues, 0.),
                    newton=newton_filter(eigenvalues.clamp(min=0), alpha))
    return {name: dict(plain=gain.amax(-1),
                       normalised=torch.linalg.eigvalsh(vectors * gain.unsqueeze(-2) @ vectors.mT).amax(-1))
            for name, gain in inverses.items()}


def measure(inputs: Inputs) -> pd.DataFrame:
    """Norms of each image and head, and, of the largest matrix, eigenvalues (``inverse`` is ``'spectrum'``)."""
    network, rows = inputs.network(NETWORK).double(), []
    sides = SIDES[:1] if inputs.quick else SIDES
    for side in sides:
        for image in inputs.images(side, IMAGES):
            seen = [case for case in inverted_matrices(network, image.tensor().double()) if case.stage == STAGE]
            found = norms(seen[-1].matrix, seen[-1].alpha)
            rows += [dict(side=side, m=seen[-1].matrix.size(-1), image=image.name, index=head, inverse=inverse,
                          kind=kind, value=value) for inverse, kinds in found.items()
                     for kind, values in kinds.items() for head, value in enumerate(values.tolist())]
    scale = seen[-1].matrix[0].sum(-1).rsqrt()
    matrices = dict(plain=seen[-1].matrix[0], normalised=scale.unsqueeze(1) * seen[-1].matrix[0] * scale)
    rows += [dict(side=sides[-1], m=len(scale), image=image.name, index=index, inverse='spectrum', kind=kind,
                  value=value) for kind, matrix in matrices.items()
             for index, value in enumerate(torch.linalg.eigvalsh(matrix).flip(0).tolist())]
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, inputs: Inputs) -> Figure:
    """Eigenvalues of one matrix, then a panel an inverse: '+' for an image and head, a line through their means."""
    figure, (panels, ) = new_figure(1, 3, 4.6, 4, f'{TITLE}\n{inputs.weights(NETWORK)}')
    spectrum = table[table.inverse == 'spectrum']
    for kind, (label, colour, _) in KINDS.items():
        rows = spectrum[spectrum.kind == kind]
        panels[0].plot(rows['index'] + 1, rows.value.clip(lower=1e-16), color=colour, label=f'${label % "A"}$')
    plain(panels[0], xscale='log', yscale='log', xlabel='rank', ylabel='eigenvalue',
          title=f'eigenvalues of one A, {spectrum.m.max()}×{spectrum.m.max()}')
    for panel, (inverse, (symbol, title)) in zip(panels[1:], INVERSES.items()):
        for kind, (label, colour, mark) in KINDS.items():
            rows = table[(table.inverse == inverse) & (table.kind == kind)]
            mean = rows.groupby('m').value.mean()
            slope = f', m^{{{np.polyfit(np.log(mean.index), np.log(mean), 1)[0]:.1f}}}' if len(mean) > 1 else ''
            panel.plot(rows.m, rows.value, mark, color=colour, alpha=0.5, markersize=5)
            panel.plot(mean.index, mean, '-', color=colour, label=fr'$\Vert {label % symbol} \Vert_2{slope}$')
        plain(panel, xscale='log', yscale='log', xlabel='bottleneck tokens m', ylabel='spectral norm', title=title,
              ticks=sorted(table.m.unique()))
    for panel in panels:
        panel.legend(frameon=False, fontsize=9)
    return figure
