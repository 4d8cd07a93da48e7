"""What the command lines in tools/ do, as functions: training, testing, prediction, export and the showcase."""
from importlib import import_module
from typing import List

# Imported when first asked for, so that the command lines can say what is wrong with a host library.
_LAZY = dict(
    train='launch',
    test='launch',
    showcase='launch',
    predict='prediction',
    visualize='visualization',
    export='deployment')

__all__ = [*_LAZY]


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(f'.{_LAZY[name]}', __name__), name)


def __dir__() -> List[str]:
    return sorted([*globals(), *_LAZY])
