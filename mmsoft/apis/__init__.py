"""The command lines in tools/ as functions: training, testing, prediction, export, drawing."""

import warnings

with warnings.catch_warnings(record=True):  # torch shows a warning that no filter stops
    import mmengine.runner  # noqa: F401

from .deployment import export
from .launch import test, train
from .prediction import predict
from .visualization import visualize

__all__ = ['export', 'predict', 'test', 'train', 'visualize']
