"""Which tokens have large queries and keys in SimA (2206.08898, Fig. 3 and Fig. 4)."""
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from mmsoft.attention import SimAAttention, SoftmaxAttention
from mmsoft.visualization import overlay
from ..inside import products
from .inputs import Inputs, new_figure, show

TITLE = "Length of each token's query or key in the last block"
MAPS = dict(sima_q=('sima_deit', 'queries', True, 'SimA: queries, l1-normalised'),
            sima_k=('sima_deit', 'keys', True, 'SimA: keys, l1-normalised'),
            deit_q=('deit', 'queries', False, 'softmax: queries'),
            deit_q_hat=('deit', 'queries', True, 'softmax: queries, l1-normalised'))
KINDS = dict(sima_deit=SimAAttention, deit=SoftmaxAttention)
SIDE, IMAGES = 224, 4


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


def measure(inputs: Inputs) -> pd.DataFrame:
    """``length`` by ``image``, ``map``, ``row`` and ``column``."""
    rows = []
    networks = {name: inputs.network(name) for name in KINDS}
    for image in inputs.images(SIDE, IMAGES):
        found = {name: products(network, image.tensor(), KINDS[name])[-1] for name, network in networks.items()}
        for name, (network, part, normalised, _) in MAPS.items():
            product = found[network]
            values = lengths(getattr(product, part), product.extra, normalised).tolist()
            rows += [dict(image=image.name, map=name, row=token // product.hw[1], column=token % product.hw[1],
                          length=length) for token, length in enumerate(values)]
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, inputs: Inputs) -> Figure:
    """A row for each image, a column for each map; the spread is the lengths' standard deviation over their mean."""
    images = inputs.images(SIDE, IMAGES)
    title = f'{TITLE}; grey: minimum of a map, yellow: maximum; spread: standard deviation / mean'
    figure, panels = new_figure(len(images), 1 + len(MAPS), 2.2, 2.4, f'{title}\n{inputs.weights(*KINDS)}')
    for row, image in zip(panels, images):
        show(row[0], image.pixels)
        for panel, (name, (*_, label)) in zip(row[1:], MAPS.items()):
            chosen = table[(table.image == image.name) & (table['map'] == name)]
            show(panel, overlay(image.pixels, chosen.pivot(index='row', columns='column', values='length').to_numpy()))
            panel.set_xlabel(f'spread {chosen.length.std() / chosen.length.mean():.2f}', fontsize=9)
            panel.set_title(label.replace(': ', ':\n') if image is images[0] else '', fontsize=10)
    return figure
