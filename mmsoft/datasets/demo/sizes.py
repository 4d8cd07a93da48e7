"""Scales the picture sizes in a config."""
from typing import Any, Dict, Iterator

from mmsoft.utils.config import dicts, map_dicts

SIZE_KEYS = ('scale', 'scales', 'img_scale', 'crop_size', 'size', 'max_size', 'border', 'random_size_range', 'stride')
GRID = 32


def _edges(value: Any) -> Iterator[int]:
    """The short edges of a size: a number, a pair, or several of these."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, int) for one in value):
        yield min(value)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _edges(one)
    elif isinstance(value, int):
        yield value


def longest_short_edge(node: Any) -> int:
    """The largest short edge that a pipeline asks for, in pixels; 1 if it leaves pictures as they are."""
    return max((edge for part in dicts(node) for key in SIZE_KEYS for edge in _edges(part.get(key))), default=1)


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_scaled(one, factor) for one in value)
    if isinstance(value, int) and abs(value) > GRID:
        size = GRID * max(1, round(abs(value) * factor / GRID))
        return size if value > 0 else -size
    return value


def shrink(node: Any, factor: float) -> Any:
    """Scales all picture sizes, to multiples of 32 pixels, which loaders and models pad to.

    Ratios, which are no whole numbers, and what is smaller already stay as they are.
    """

    def visit(part: Dict[str, Any]) -> Dict[str, Any]:
        return {key: _scaled(value, factor) if key in SIZE_KEYS else value for key, value in part.items()}

    return map_dicts(node, visit) if factor < 1 else node
