"""Figures of the papers, drawn again: ``python -m benchmarks.figures``."""
