"""Softmax-free transformers for dense prediction, as an OpenMMLab plugin."""
from importlib import import_module

from .utils.hosts import check_hosts, require_host
from .version import __version__

check_hosts()

__all__ = ['__version__', 'require_host']


def __getattr__(name: str):
    """``mmsoft.SOFT`` and the other networks, imported when first asked for: torch is not loaded before."""
    if name[:1].isupper():
        for part in ('backbones', 'necks'):
            module = import_module(f'.{part}', __name__)
            if name in getattr(module, '__all__', ()):
                return getattr(module, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
