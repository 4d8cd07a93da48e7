"""Which tokens have large queries and keys in SimA (2206.08898, Fig. 3 and Fig. 4)."""
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from mmsoft.attention import SimAAttention, SoftmaxAttention
from mmsoft.visualization import overlay
from .options import Options
from .products import last_product
from .style import new_figure, show

TITLE = 'Length of each token\'s query or key in the last block'
MAPS = dict(sima_q=('sima_deit', 0, True, 'SimA: queries, l1-normalised'),
            sima_k=('sima_deit', 1, True, 'SimA: keys, l1-normalised'),
            deit_q=('deit', 0, False, 'softmax: queries'),
            deit_q_hat=('deit', 0, True, 'softmax: queries, l1-normalised'))
KINDS = dict(sima_deit=SimAAttention, deit=SoftmaxAttention)
SIDE, PICTURES = 224, 4


def lengths(tokens: Tensor, extra: int, normalised: bool) -> Tensor:
    """Lengths of tokens over all heads' channels.

    Args:
        tokens (Tensor): Queries or keys, shape (1, h, extra + n, d).
        extra (int): Class tokens in front, which are left out, but take part in the norm.
        normalised (bool): Whether to divide each channel by its l1 norm over the tokens first.

    Returns:
        Tensor: Shape (n,).
    """
    if normalised:
        tokens = tokens / tokens.abs().sum(-2, keepdim=True)
    return tokens[0, :, extra:].square().sum((0, 2)).sqrt()


def measure(options: Options) -> pd.DataFrame:
    """``length`` by ``picture``, ``map``, ``row`` and ``column``."""
    rows = []
    networks = {name: options.network(name) for name in KINDS}
    for picture in options.pictures(SIDE, PICTURES):
        image = picture.tensor()
        products = {name: last_product(network, image, KINDS[name]) for name, network in networks.items()}
        for name, (network, factor, normalised, _) in MAPS.items():
            product = products[network]
            found = lengths(product.args[factor], product.extra, normalised)
            rows += [dict(picture=picture.name, map=name, row=token // product.hw[1], column=token % product.hw[1],
                          length=length) for token, length in enumerate(found.tolist())]
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, options: Options) -> Figure:
    """A row a picture, a column a map, with the spread of the lengths: their standard deviation over their mean."""
    pictures = options.pictures(SIDE, PICTURES)
    title = f'{TITLE}; grey: shortest of a map, yellow: longest; spread: standard deviation / mean'
    figure, panels = new_figure(len(pictures), 1 + len(MAPS), 2.2, 2.4, f'{title}\n{options.weights(*KINDS)}')
    for row, picture in zip(panels, pictures):
        show(row[0], picture.pixels)
        for panel, (name, (*_, label)) in zip(row[1:], MAPS.items()):
            chosen = table[(table.picture == picture.name) & (table['map'] == name)]
            show(panel, overlay(picture.pixels, chosen.pivot(index='row', columns='column', values='length').to_numpy()))
            panel.set_xlabel(f'spread {chosen.length.std() / chosen.length.mean():.2f}', fontsize=9)
            panel.set_title(label.replace(': ', ':\n') if picture is pictures[0] else '', fontsize=10)
    return figure
