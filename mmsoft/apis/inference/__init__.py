"""Predictions for images, drawn and as files that programs read; and what a network sees."""
from .prediction import predict
from .visualization import visualize

__all__ = ['predict', 'visualize']
