"""Measurements of this repository: speed, evidence, figures, the model zoo. Not part of the installed package."""
