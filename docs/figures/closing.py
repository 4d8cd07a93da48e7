"""Draws docs/images/closing.svg from docs/data/evidence.json: ``python docs/figures/closing.py``."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np

DOCS = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
plt.rcParams.update({'font.family': 'DejaVu Sans', 'svg.fonttype': 'path', 'svg.hashsalt': 'mmsoft', 'font.size': 9})
LINES = dict(
    none=('γ = 1, nothing changed', '#c22f2f'),
    eps=("AdamW's ε = 1e-4", '#d0661f'),
    reversed=('kernel goes up\nthe gradient', '#5b6270'),
    noise=("kernel's gradients\nare noise", '#2f6fd0'),
    frozen=('queries and\nsampling frozen', '#17857a'),
    gamma_06=('γ = 0.6', '#b38ad8'),
    gamma_03=('γ = 0.3', '#8a4fc0'),
    channels_8=('γ = 1, 8 channels\na head', '#3c8a2e'),
)
BLOCK = 'stages.0.blocks.0.attn'


def draw(records):
    """Share and exponent of stage 0 over iterations: the mean over seeds, and a band from minimum to maximum."""
    figure, panels = plt.subplots(1, 2, figsize=(9.4, 4.6), layout='constrained')
    for panel, key, title in zip(panels, ('share', 'exponent'), ('share of attention', 'exponent of the kernel')):
        ends = []
        for name, (label, colour) in LINES.items():
            courses = [one['course'][BLOCK] for one in records if one['row'] == f'closing_soft_norm_{name}']
            if not courses:
                continue
            values = np.array([course[key] for course in courses])
            mean = np.exp(np.log(values).mean(0)) if key == 'share' else values.mean(0)
            panel.plot(courses[0]['iteration'], mean, color=colour)
            panel.fill_between(courses[0]['iteration'], values.min(0), values.max(0), color=colour, alpha=0.15, lw=0)
            ends.append((mean[-1], label, colour))
        panel.set(title=f'{title}, stage 0', xlabel='iteration', xlim=(0, 215), xticks=range(0, 151, 50))
        panel.set_yscale('log' if key == 'share' else 'linear')
        panel.spines[['top', 'right']].set_visible(False)
        panel.grid(alpha=0.25)
        place = (panel.transScale + panel.transLimits).transform
        last = -1.0
        for y, label, colour in sorted(ends):  # labels at the ends of the lines, none on another
            last = max(place((0, y))[1], last + (0.075 if '\n' in label else 0.055))
            panel.text(0.715, last, label, color=colour, transform=panel.transAxes, va='center', fontsize=8)
            last += 0.02 * ('\n' in label)
    figure.savefig(DOCS / 'images/closing.svg', facecolor='white', metadata={'Date': None})


if __name__ == '__main__':
    draw(json.loads((DOCS / 'data/evidence.json').read_text()))
