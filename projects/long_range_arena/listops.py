"""ListOps: what nested lists of digits evaluate to, by the rules of Long Range Arena (arXiv 2011.04006)."""

import random
from statistics import median
from typing import Optional

from mmengine.registry import DATASETS

from .sequences import Sequences

OPERATORS = dict(MIN=min, MAX=max, MED=lambda values: int(median(values)), SM=lambda values: sum(values) % 10)
SYMBOLS = [*map(str, range(10)), *(f'[{name}' for name in OPERATORS), ']']
NUMBER = {symbol: number for number, symbol in enumerate(SYMBOLS, 1)}  # 0 is padding
VALUE = 0.75


def draw_tree(rng: random.Random, room: int, depth: int, arguments: int) -> Optional[tuple[list[str], int]]:
    """Symbols of a random list, and what it evaluates to; None if it has more than ``room`` symbols.

    ``depth`` is how deep it may be: a digit has 1, a list one more than what is in it. A list has at most so many
    ``arguments``.
    """
    if depth == 1 or rng.random() < VALUE:
        value = rng.randrange(10)
        return [str(value)], value
    name = rng.choice(list(OPERATORS))
    symbols, values = [f'[{name}'], []
    for _ in range(rng.randint(2, arguments)):
        drawn = draw_tree(rng, room - len(symbols) - 1, depth - 1, arguments)
        if drawn is None:
            return None
        symbols += drawn[0]
        values.append(drawn[1])
        if len(symbols) >= room:
            return None
    return [*symbols, ']'], OPERATORS[name](values)


@DATASETS.register_module()
class ListOps(Sequences):
    """Lists of 501 to 1,999 symbols, of 15 kinds; the classes are the digits.

    Args:
        lengths (tuple[int, int]): Lists are longer than the first number and shorter than the second.
        depth (int): Lists are in each other at most so deep; a digit has depth 1.
        arguments (int): A list has at most so many digits and lists in it.
        **kwargs: Those of :class:`Sequences`.
    """

    METAINFO = dict(classes=tuple(map(str, range(10))))

    def __init__(self, lengths: tuple[int, int] = (500, 2000), depth: int = 10, arguments: int = 10, **kwargs) -> None:
        self.lengths, self.depth, self.arguments = lengths, depth, arguments
        super().__init__(kind=f'listops_{lengths[0]}_{lengths[1]}_{depth}_{arguments}', **kwargs)

    def draw(self, rng: random.Random) -> tuple[list[int], int]:
        """See :class:`Sequences`."""
        while True:
            drawn = draw_tree(rng, self.lengths[1] - 1, self.depth, self.arguments)
            if drawn is not None and len(drawn[0]) > self.lengths[0]:
                return [NUMBER[symbol] for symbol in drawn[0]], drawn[1]
