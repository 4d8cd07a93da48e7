"""Softmax-free transformers for dense prediction, as an OpenMMLab plugin."""

from importlib import import_module

__version__ = '0.2.0'

# Imported when first asked for: `import mmsoft` loads neither torch nor an OpenMMLab library.
_LAZY = dict(RescalePyramid='necks', AttentionShareHook='engine.attention_share')
_LAZY.update(dict.fromkeys(('SOFT', 'SimAXCiT', 'SimADeiT', 'SimACvT'), 'backbones'))

__all__ = ['__version__', *_LAZY]


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(f'.{_LAZY[name]}', __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
