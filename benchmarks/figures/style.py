"""How figures look."""
from typing import Sequence, Tuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's, which colour-blind people tell apart.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = (
    '#000000', '#E69F00', '#56B4E9', '#009E73', '#0072B2', '#D55E00', '#CC79A7')


def new_figure(rows: int, columns: int, width: float, height: float, title: str,
               **options) -> Tuple[Figure, np.ndarray]:
    """A figure and its panels, of shape (rows, columns); a panel's width and height are in inches."""
    figure = Figure(figsize=(columns * width, rows * height), layout='constrained')
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def plain(panel: Axes, ticks: Sequence[float] = (), **settings) -> None:
    """Axes of a diagram: a grid, no frame, what :meth:`Axes.set` sets, and numbers at these places of x alone."""
    panel.set(**settings)
    if ticks:
        panel.set_xticks(ticks, ticks, fontsize=8)
        panel.set_xticks([], minor=True)
    panel.title.set_fontsize(10)
    panel.grid(alpha=0.25)
    panel.spines[['top', 'right']].set_visible(False)


def show(panel: Axes, pixels: np.ndarray) -> None:
    """A picture, whose corners are at 0 and 1."""
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(False)
    panel.imshow(pixels, extent=(0, 1, 1, 0))


def cross(panel: Axes, x: float, y: float) -> None:
    """Marks a place of a picture that :func:`show` has drawn."""
    panel.plot([x], [y], 'x', color='white', markersize=9, markeredgewidth=4)
    panel.plot([x], [y], 'x', color='black', markersize=8, markeredgewidth=1.5)
