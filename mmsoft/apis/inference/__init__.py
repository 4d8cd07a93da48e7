"""Predictions for pictures: drawn, and as files that programs read."""
from .run import predict

__all__ = ['predict']
