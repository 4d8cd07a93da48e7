"""Convergence of Newton's iteration in each stage (2110.11945, Fig. 4)."""

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ..inside import bottlenecks, log_missing
from .inputs import BLACK, BLUE, GREEN, RED, new_figure, plain, scenes

TITLE = 'How far k steps of Newton–Raphson are from the inverse of the bottleneck matrix A'
USES = dict(soft='SOFT', soft_norm='SOFT-Norm')
MEASURES = dict(
    residual=r'$\Vert A A_k A - A \Vert_2 \;/\; \Vert A \Vert_2$',
    distance=r'$\Vert A_k - A^{-1} \Vert_2 \;/\; \Vert A^{-1} \Vert_2$',
)
SIDE, IMAGES, STEPS, USED = 224, 8, 30, 20


def errors(eigenvalues: Tensor, alpha: Tensor, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    """Both :data:`MEASURES` for k = 0 … steps, from the eigenvalues of symmetric matrices.

    Args:
        eigenvalues (Tensor): Shape (h, m), float64.
        alpha (Tensor): Scale of the starting value, shape (h, 1).
        steps (int): Maximum of k.

    Returns:
        tuple[Tensor, Tensor]: Each of shape (h, steps + 1).
    """
    eigenvalues = eigenvalues.clamp(min=torch.finfo(eigenvalues.dtype).eps).unsqueeze(1)
    missing = log_missing(eigenvalues, alpha.unsqueeze(1), torch.arange(steps + 1).unsqueeze(1)).exp()
    residual = (eigenvalues * missing).amax(-1) / eigenvalues.amax(-1)
    return residual, (missing / eigenvalues).amax(-1) * eigenvalues.amin(-1)


def measure(networks: dict[str, nn.Module]) -> pd.DataFrame:
    """Mean, minimum and maximum of both :data:`MEASURES` over images, blocks and heads."""
    rows = [
        (name, seen.stage, kind, step, value)
        for name in USES
        for image in scenes(SIDE, IMAGES)
        for seen in bottlenecks(networks[name], image.double())
        for kind, curves in zip(MEASURES, errors(torch.linalg.eigvalsh(seen.matrix), seen.alpha))
        for curve in curves.tolist()
        for step, value in enumerate(curve)
    ]
    by = ['network', 'stage', 'measure', 'step']
    groups = pd.DataFrame(rows, columns=[*by, 'value']).groupby(by, sort=False).value
    return groups.agg(['mean', 'min', 'max']).assign(matrices=groups.size()).reset_index()


def draw(table: pd.DataFrame, weights: str) -> Figure:
    """A row of panels for each measure, a column for each network: a line for each stage, one for the worst matrix."""
    figure, panels = new_figure(2, 2, 5, 3.3, f'{TITLE}\n{weights}', sharex=True, sharey=True)
    for row, (kind, label) in zip(panels, MEASURES.items()):
        for panel, (name, title) in zip(row, USES.items()):
            lines = table[(table.network == name) & (table.measure == kind)]
            for stage, colour in zip((0, 1, 2), (BLUE, RED, GREEN)):
                line = lines[lines.stage == stage]
                panel.plot(line.step, line['mean'], color=colour, label=f'stage {stage}, mean')
            worst = lines.groupby('step')['max'].max()
            panel.plot(worst, color=BLACK, linestyle='--', linewidth=1, label='worst matrix of all')
            panel.axvline(USED, color='grey', linestyle=':')
            first = kind == 'residual'
            plain(panel, title=title * first, xlabel='' if first else 'steps k', yscale='log', ylim=(1e-7, 2))
        row[0].set_ylabel(label)
    panels[0, 0].text(USED + 0.4, 0.05, 'the networks\nstop here', color='grey', fontsize=9)
    panels[1, 0].legend(frameon=False, fontsize=9, loc='lower left')
    return figure
