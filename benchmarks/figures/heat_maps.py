"""What a token attends to, by four attentions in one architecture (2110.11945, Fig. 3)."""
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mmsoft.attention import NystromformerAttention, PerformerAttention, SOFTAttention, SoftmaxAttention
from mmsoft.visualization import overlay
from ..inside import products
from .inputs import Inputs, new_figure, show

TITLE = 'What the token at the cross attends to'
NETWORKS = dict(softmax=('Transformer', SoftmaxAttention), performer=('Performer', PerformerAttention),
                nystromformer=('Nyströmformer', NystromformerAttention), soft=('SOFT', SOFTAttention))
SIDE, STAGE, HEADS, IMAGES = 256, 3, 2, 2
BRIGHTEST = 0.02  # share of the tokens at the top of the scale: a softmax has few that are far above the others


def measure(inputs: Inputs) -> pd.DataFrame:
    """``weight`` by ``image``, ``network``, ``head``, ``row`` and ``column`` of the third stage's map."""
    rows = []
    networks = {name: inputs.network(name) for name in NETWORKS}
    for image in inputs.images(SIDE, IMAGES):
        for name, (_, kind) in NETWORKS.items():
            product = products(networks[name], image.tensor(), kind, STAGE)[-1]
            (height, width), (x, y) = product.hw, image.focus
            token = min(int(y * height), height - 1) * width + min(int(x * width), width - 1)
            for head, map_ in enumerate(product.row(token)[0, :HEADS].tolist()):
                rows += [dict(image=image.name, network=name, head=head + 1, row=row, column=column, weight=weight)
                         for row, line in enumerate(map_) for column, weight in enumerate(line)]
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, inputs: Inputs) -> Figure:
    """A row for each image and head, a column for each attention, each map from its minimum to its maximum."""
    images = inputs.images(SIDE, IMAGES)
    title = f'{TITLE}: last block of stage {STAGE}; grey: minimum of a map, yellow: its maximum'
    figure, panels = new_figure(HEADS * len(images), 5, 2, 2.05, f'{title}\n{inputs.weights(*NETWORKS)}')
    for i, row in enumerate(panels):
        image, head = images[i // HEADS], i % HEADS + 1
        show(row[0], image.pixels)
        row[0].set_ylabel(f'head {head}')
        for panel, (name, (label, _)) in zip(row[1:], NETWORKS.items()):
            chosen = table[(table.image == image.name) & (table.network == name) & (table['head'] == head)]
            weights = chosen.pivot(index='row', columns='column', values='weight').to_numpy()
            show(panel, overlay(image.pixels, weights, peak=np.quantile(weights, 1 - BRIGHTEST)))
            panel.set_title(label if i == 0 else '', fontsize=10)
        for panel in row:
            panel.plot(*image.focus, 'x', color='white', markersize=9, markeredgewidth=4)
            panel.plot(*image.focus, 'x', color='black', markersize=8, markeredgewidth=1.5)
    return figure
