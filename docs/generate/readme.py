"""Writes README.md's tables of results from the metafiles and docs/data: ``python -m docs.generate.readme``."""

import pandas as pd

from benchmarks.common import ROOT, filled
from benchmarks.zoo import published_models

DETECTORS = {
    'retinanet_soft_tiny_1x': 'soft_norm_tiny',
    'retinanet_soft_small_1x': 'soft_norm_small',
    'retinanet_soft_medium_1x': '',
    'retinanet_soft_large_1x': '',
    'mask_rcnn_soft_tiny_1x': 'soft_norm_tiny',
    'mask_rcnn_soft_small_1x': 'soft_norm_small',
    'mask_rcnn_soft_medium_1x': '',
    'mask_rcnn_soft_large_1x': '',
    'cascade_mask_rcnn_soft_small_3x': 'soft_norm_small',
    'mask_rcnn_sima_xcit_small_12_p16_3x': 'sima_xcit_small',
}
SEGMENTERS = {'upernet_soft_small_160k': 'soft_norm_small', 'upernet_soft_medium_160k': ''}
"""Configs, and the backbones of the benchmark by which their times are known."""


def seconds() -> pd.DataFrame:
    """Median times of a forward pass by backbone and image height, a column for each allocator."""
    runs = pd.read_csv(ROOT / 'docs/data/benchmark.csv')
    runs = runs[~runs.backward & (runs['dtype'] == 'float32')]
    medians = runs.groupby(['model', 'height', 'allocator']).seconds.median().unstack()
    return medians.map(lambda time: f'{time:.1f} s' if time >= 1 else f'{time:.2f} s')


def tables() -> str:
    """Both tables and what they are measured with, as Markdown."""
    published, medians = published_models(ROOT / 'model-index.yml'), seconds()
    sizes = pd.read_csv(ROOT / 'docs/data/zoo.csv', index_col='config')
    parts = []
    for configs, keys, height, title in (
        (DETECTORS, ('box AP', 'mask AP'), 800, 'paper: box AP / mask AP'),
        (SEGMENTERS, ('mIoU',), 512, 'paper: mIoU'),
    ):
        rows = [f'| config | {title} | parameters | FLOPs | backbone, CPU |', '|---|---|---|---|---|']
        for name, backbone in configs.items():
            printed = published[name]['Scores']
            score = ' / '.join(f'{printed[key]:.1f}' for key in keys if key in printed)
            size = sizes.loc[name]
            time = medians['keeps pages'].get((backbone, height), '–')
            link = f'[{name}](configs/{name}.py)'
            rows.append(f'| {link} | {score} | {size.parameters:.1f} M | {int(size.flops + 0.5)} G | {time} |')
        parts.append('\n'.join(rows))
    rival, defaults = (' and '.join(medians[name]['pvt_small'][[800, 512]]) for name in ('keeps pages', 'glibc'))
    parts.append(
        '* Scores: arXiv 2207.03341, Table 4, Table 5 and Table 6; for SimA arXiv 2206.08898, Table 3.\n'
        '* Parameters and FLOPs: counted by `make zoo`, at 1280×800 for detectors and 512×512 for segmenters. FLOPs are\n'
        "  multiply-accumulates. As in the papers, SOFT's inverse is left out ([how much that is](docs/flops.md)).\n"
        '* CPU time: one forward pass of the backbone on two cores, at 800×1344 for detectors and 512×512 for segmenters.\n'
        f'  PVT-Small takes {rival}. This is with an allocator that keeps freed memory, such as jemalloc.\n'
        f'  With that of glibc PVT-Small takes {defaults} ([benchmark](docs/benchmark.md)).'
    )
    return '\n\n'.join(parts)


def page() -> str:
    """README.md with its tables filled."""
    return filled((ROOT / 'README.md').read_text(), results=lambda _: tables())


if __name__ == '__main__':
    (ROOT / 'README.md').write_text(page())
