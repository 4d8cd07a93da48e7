"""Where on the map SOFT's bottleneck tokens look (after 2110.11945, Fig. 3)."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mmsoft.visualization import overlay

from ..inside import bottlenecks
from .inputs import Inputs, new_figure

TITLE = 'Kernel of the bottleneck token nearest to the object at the cross'
NETWORKS = dict(soft='SOFT', soft_norm='SOFT-Norm')
SIDE, STAGE, HEADS, IMAGES = 256, 3, 2, 2


def measure(inputs: Inputs) -> pd.DataFrame:
    """``weight`` by ``image``, ``network``, ``head``, ``row`` and ``column`` of the third stage's map."""
    rows = []
    for name in NETWORKS:
        network = inputs.network(name)
        for image in inputs.images(SIDE, IMAGES):
            last = [one for one in bottlenecks(network, image.tensor()) if one.stage == STAGE][-1]
            kernel = last.kernel()
            height, width = kernel.shape[2:]
            query = [min(int(share * extent), extent - 1) for share, extent in zip(image.focus[::-1], (height, width))]
            token = kernel[:, :, query[0], query[1]].mean(0).argmax()
            rows += [
                dict(image=image.name, network=name, head=head + 1, row=row, column=column, weight=weight)
                for head, map_ in enumerate(kernel[:HEADS, token].tolist())
                for row, line in enumerate(map_)
                for column, weight in enumerate(line)
            ]
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, inputs: Inputs) -> Figure:
    """A row for each image, a column for each network and head, each map from its minimum to its maximum."""
    images, columns = inputs.images(SIDE, IMAGES), list(table.groupby(['network', 'head'], sort=False))
    title = f'{TITLE}: last block of stage {STAGE}; grey: minimum of a map, yellow: its maximum'
    figure, panels = new_figure(len(images), 1 + len(columns), 2.2, 2.4, f'{title}\n{inputs.weights(*NETWORKS)}')
    for image, row in zip(images, panels):
        row[0].imshow(image.pixels, extent=(0, 1, 1, 0))
        for panel, ((name, head), maps) in zip(row[1:], columns):
            weights = maps[maps.image == image.name].pivot(index='row', columns='column', values='weight')
            panel.imshow(overlay(image.pixels, weights.to_numpy().astype(np.float32)), extent=(0, 1, 1, 0))
            panel.set_title(f'{NETWORKS[name]}, head {head}', fontsize=10)
        for panel in row:
            panel.set(xticks=[], yticks=[])
            panel.plot(*image.focus, 'x', color='white', markersize=9, markeredgewidth=4)
            panel.plot(*image.focus, 'x', color='black', markersize=8, markeredgewidth=1.5)
    return figure
