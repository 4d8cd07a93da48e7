"""Softmax-free transformers for dense prediction, as an OpenMMLab plugin."""
from .version import __version__

__all__ = ['__version__']
