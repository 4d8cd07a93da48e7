"""docs/evidence.md: a table, the losses, and what Mask R-CNN sees."""
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

import cv2
import mmcv
import numpy as np
import torch
from matplotlib.figure import Figure
from mmengine.registry import MODELS
from mmengine.runner import find_latest_checkpoint

from mmsoft.datasets.shapes_formats import IMAGES
from mmsoft.visualization import draw_contact_sheet
from ..attention_norms import attention_norms
from .recipe import make_config, started
from .rows import ROWS, SHAPES, Row, Run

BARS = {'mask_rcnn': {'box AP50': 0.85, 'mask AP50': 0.80}}
"""Scores that a row has to reach."""
BEHIND = 0.03
"""It is said if a row's first score is that much below the host's."""
SHOWN = Run('mask_rcnn', 'soft_norm')
GROUPS = {
    'Detectors': ('box AP50', 'box AP', 'mask AP50', 'mask AP'),
    'Segmenter': ('mIoU', ),
    'Classifiers': ('top-1', ),
}
SIDES = (64, 128, 256)
Result = Dict[str, Any]

PAGE = '''# Evidence

Does it learn? Every method and every body of the zoo, in a small size, trained for minutes on the generated shapes and
scored on {val} scenes (or {portraits} pictures of one object) that it has not seen. Beside each stands a backbone of the
host's own with about as many parameters, in the same head, with the same recipe, seed and number of iterations. What the
papers compare with follows, network beside network in one body; [the study](study.md) has the papers' figures of it.

    make evidence                                   all rows; interrupted, it goes on where it stopped
    python tools/evidence.py mask_rcnn              one row
    python tools/evidence.py --list                 their names

A row takes the zoo's config of the method, divides the channels of its heads by four, and gives it another backbone;
[rows.py](../benchmarks/evidence/rows.py) has the sizes. One seed each: differences of a few hundredths are within
what another seed would change. These networks are a hundredth of the published ones and their pictures have {size}
pixels, so the table says that all parts work and learn, not which backbone is better.

Each pair is **ours / the host's**. Chance is what one scores who has not looked at the pictures: true boxes and masks with
classes drawn at random; the best single class everywhere; one class always.

{tables}

{norms}{remarks}
## Losses

Ours in red, the host's in grey; each a mean of ten iterations.

![The losses of all trainings](images/evidence_losses.png)

## What Mask R-CNN with SOFT-Norm finds

Held-out scenes, detections with a score of 0.5 or more.

![Scenes, their ground truth, and the masks that were found](images/evidence_masks.jpg)

## To have it again

Seed {seed}; {versions}.
One thread each on a busy virtual machine; minutes are those that the processor worked (user and system time), not those
of the clock. `work_dirs/evidence/*/result.json` holds every figure of this page, and all losses.
'''

NORMS = '''## Spectral norms

Of the matrix by which the classifiers' attention multiplies its values, the mean over heads, blocks and four scenes.

| network | picture | stage 1 | stage 2 | stage 3 |
|---|---|---|---|---|
'''


def write_report(results: Dict[str, Result], chance: Dict[str, float], work_dir: Path, docs: Path) -> Path:
    """Writes the page of the rows that are done.

    Args:
        results: Of the trainings, by the names of the runs.
        chance: See :func:`~benchmarks.evidence.chance.chance`.
        work_dir: Where the trained networks are.
        docs: Folder for ``evidence.md`` and ``images/``.

    Returns:
        The page.
    """
    rows = {name: row for name, row in ROWS.items() if row.ours.name in results}
    (docs / 'images').mkdir(parents=True, exist_ok=True)
    plot_losses({name: row for name, row in rows.items() if row.host}, results, docs / 'images/evidence_losses.png')
    shown = work_dir / SHOWN.name
    if SHOWN.name in results and (shown / 'last_checkpoint').is_file():
        cfg = make_config(SHOWN, str(work_dir / 'shapes'), str(shown))
        sheet = draw_contact_sheet(cfg, find_latest_checkpoint(str(shown)), shown / 'contact_sheet.png')
        picture = mmcv.imrescale(mmcv.imread(str(sheet)), 0.75, interpolation='area')
        mmcv.imwrite(picture, str(docs / 'images/evidence_masks.jpg'), [cv2.IMWRITE_JPEG_QUALITY, 85])
    lines, absent = list(remarks(rows, results)), [f'`{name}`' for name in ROWS if name not in rows]
    if absent:
        lines.append(f'Not trained yet: {", ".join(absent)}.')
    first = next(iter(results.values()), dict(seed='–', versions={}))
    page = docs / 'evidence.md'
    page.write_text(
        PAGE.format(
            val=SHAPES['val'],
            portraits=SHAPES['portraits'] // 4,
            size=SHAPES['size'],
            tables='\n\n'.join(_tables(rows, results, chance)),
            norms=norm_table(work_dir),
            remarks=''.join(f'* {line}\n' for line in lines),
            seed=first['seed'],
            versions=', '.join(f'{name} {version}' for name, version in first['versions'].items())))
    return page


def norm_table(work_dir: Path) -> str:
    """Spectral norms in SOFT and SOFT-Norm at growing sizes, as their classifiers begin to be tuned; empty without."""
    paths = sorted((work_dir / 'shapes' / IMAGES['val']).glob('*'))[:4]
    lines = []
    for name in ('soft', 'soft_norm'):
        backbone = started(Run('tuned_upernet', name), str(work_dir / 'tuned_upernet'))
        if not backbone.dense['init_cfg']['checkpoint']:
            return ''
        network = MODELS.build(backbone.dense)
        network.init_weights()
        for side in SIDES:
            scenes = [mmcv.imresize(mmcv.imread(str(path), channel_order='rgb'), (side, side)) for path in paths]
            images = torch.from_numpy(np.stack(scenes)).permute(0, 3, 1, 2).double() / 57.5 - 2
            norms = attention_norms(network.double().eval(), images)
            lines.append(f'| {backbone.title} | {side}² | {" | ".join(f"{norm:.3g}" for norm in norms)} |')
    return NORMS + '\n'.join(lines) + '\n\n'


def remarks(rows: Dict[str, Row], results: Dict[str, Result]) -> Iterator[str]:
    """Bars that were missed or met, and where ours is behind."""
    for name, row in rows.items():
        ours, *host = [results[run.name]['scores'] for run in row.runs if run.name in results]
        for score, bar in BARS.get(name, {}).items():
            missed = '' if ours[score] >= bar else ', **missed**'
            yield f'`{name}`: {score} {ours[score]:.3f}; the bar is {bar:.2f}{missed}.'
        score = next(iter(ours))
        if host and ours[score] < host[0][score] - BEHIND:
            yield f'`{name}` is {host[0][score] - ours[score]:.2f} of {score} behind the host\'s.'


def _tables(rows: Dict[str, Row], results: Dict[str, Result], chance: Dict[str, float]) -> Iterator[str]:
    for networks, suffix in ((['ours', 'the host\'s'], ''), (['network'], ' that the papers compare')):
        for title, scores in GROUPS.items():
            lines = [_line(name, row, results, scores) for name, row in rows.items()
                     if len(row.runs) == len(networks) and scores[0] in results[row.ours.name]['scores']]
            if lines:
                header = ['row', 'method', *networks, 'parameters, M', 'iterations', 'CPU minutes', *scores]
                blank = ['', '*chance*', *[''] * (len(networks) + 3), *(f'{chance[score]:.2f}' for score in scores)]
                cells = (header, ['---'] * len(header), *lines, blank)
                table = '\n'.join(f'| {" | ".join(line)} |' for line in cells)
                yield f'## {title}{suffix}\n\n{table}'


def _line(name: str, row: Row, results: Dict[str, Result], scores: Sequence[str]) -> List[str]:
    found = [results.get(run.name) for run in row.runs]

    def cell(figure: Callable[[Result], float], digits: int) -> str:
        """A figure of ours and the host's; a dash for a training that is still to come."""
        return ' / '.join('–' if one is None else f'{figure(one):.{digits}f}' for one in found)

    return [
        f'`{name}`', row.title, *row.networks,
        cell(lambda one: one['parameters'] / 1e6, 1),
        str(found[0]['iterations']),
        cell(lambda one: one['cpu_minutes'], 1),
        *(cell(lambda one: one['scores'][score], 3) if score in found[0]['scores'] else '' for score in scores)
    ]


def plot_losses(rows: Dict[str, Row], results: Dict[str, Result], path: Path) -> None:
    """Draws a panel a row: its loss against the iterations, on a logarithmic scale, and the host's; nothing of none."""
    if not rows:
        return
    columns = min(4, len(rows))
    height = -(-len(rows) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.2 * height), layout='constrained')
    panels = figure.subplots(height, columns, squeeze=False).flat
    for panel, (name, row) in zip(panels, rows.items()):
        for run, colour, width in ((row.host, '#888888', 1.), (row.ours, '#d62728', 1.3)):
            if run.name in results:
                panel.plot(*zip(*results[run.name]['losses']), color=colour, linewidth=width)
        panel.set_yscale('log')
        panel.set_title(name, fontsize=9)
        panel.tick_params(labelsize=7, which='both')
    for panel in figure.axes[len(rows):]:
        panel.set_visible(False)
    figure.savefig(path, dpi=110)
