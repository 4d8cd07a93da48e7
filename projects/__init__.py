"""Experiments on top of the package, a folder each."""
