"""What a token attends to, by four attentions in one body (2110.11945, Fig. 3)."""
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mmsoft.attention import NystromformerAttention, PerformerAttention, SOFTAttention, SoftmaxAttention
from mmsoft.visualization import overlay
from .options import Options
from .products import last_product
from .style import cross, new_figure, show

TITLE = 'What the token at the cross attends to'
NETWORKS = dict(softmax=('Transformer', SoftmaxAttention), performer=('Performer', PerformerAttention),
                nystromformer=('Nyströmformer', NystromformerAttention), soft=('SOFT', SOFTAttention))
SIDE, STAGE, HEADS, PICTURES = 256, 3, 2, 2
BRIGHTEST = 0.02  # share of the tokens at the top of the scale: a softmax has few that are far above the others


def measure(options: Options) -> pd.DataFrame:
    """``weight`` by ``picture``, ``network``, ``head``, ``row`` and ``column`` of the third stage's map."""
    rows = []
    networks = {name: options.network(name) for name in NETWORKS}
    for picture in options.pictures(SIDE, PICTURES):
        for name, (_, kind) in NETWORKS.items():
            product = last_product(networks[name], picture.tensor(), kind, STAGE)
            (height, width), (x, y) = product.hw, options.query or picture.focus
            token = min(int(y * height), height - 1) * width + min(int(x * width), width - 1)
            for head, map_ in enumerate(product.row(token)[0, :HEADS].tolist()):
                rows += [dict(picture=picture.name, network=name, head=head + 1, row=row, column=column, weight=weight)
                         for row, line in enumerate(map_) for column, weight in enumerate(line)]
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, options: Options) -> Figure:
    """A row a picture and head, a column an attention, each map from its least weight to its greatest."""
    pictures = options.pictures(SIDE, PICTURES)
    title = f'{TITLE}: last block of stage {STAGE}; grey: least weight of a map, yellow: its greatest'
    figure, panels = new_figure(HEADS * len(pictures), 5, 2, 2.05, f'{title}\n{options.weights(*NETWORKS)}')
    for i, row in enumerate(panels):
        picture, head = pictures[i // HEADS], i % HEADS + 1
        show(row[0], picture.pixels)
        row[0].set_ylabel(f'head {head}')
        for panel, (name, (label, _)) in zip(row[1:], NETWORKS.items()):
            chosen = table[(table.picture == picture.name) & (table.network == name) & (table['head'] == head)]
            weights = chosen.pivot(index='row', columns='column', values='weight').to_numpy()
            show(panel, overlay(picture.pixels, weights, peak=np.quantile(weights, 1 - BRIGHTEST)))
            panel.set_title(label if i == 0 else '', fontsize=10)
        for panel in row:
            cross(panel, *(options.query or picture.focus))
    return figure
