"""What the command lines in tools/ do, as functions: training, testing, prediction, export, drawing."""

from importlib import import_module

# Imported when first asked for, so that the command lines can say what is wrong with an OpenMMLab library.
_MODULES = dict(
    train='launch',
    test='launch',
    browse='browsing',
    predict='prediction',
    visualize='visualization',
    export='deployment',
)
__all__ = [*_MODULES]


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(f'.{_MODULES[name]}', __name__), name)


def __dir__() -> list:
    return sorted([*globals(), *_MODULES])
