"""The papers' figures, drawn anew: each is a file, with a table that is measured and a picture of that table."""
from types import ModuleType
from typing import Dict

from . import exponentials, heat_maps, memory, newton, saliency, softmax_cost, spectral_norms

FIGURES: Dict[str, ModuleType] = dict(
    memory=memory,
    newton=newton,
    spectral_norms=spectral_norms,
    heat_maps=heat_maps,
    saliency=saliency,
    softmax_cost=softmax_cost,
    exponentials=exponentials,
)
"""By name, modules with ``TITLE``, ``measure(options)``, a DataFrame, and ``draw(table, options)``, a Figure of it."""

__all__ = ['FIGURES']
