"""Predictions for pictures: drawn, and as files that programs read; and what the network saw."""
from .run import predict
from .visualization import visualize

__all__ = ['predict', 'visualize']
