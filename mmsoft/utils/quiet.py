"""Imports mmengine's optimizers without the warning that torch lets pass every filter."""
import warnings

with warnings.catch_warnings(record=True):
    import mmengine.optim  # noqa: F401
