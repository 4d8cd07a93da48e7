"""SimA's last experiment: learning without labels by DINO. See README.md."""

from .digits import Digits
from .dino import DINO, DINOLoss, Projection
from .evaluation import KNNTestLoop, Probe
from .training import ClipEachAmpOptimWrapper, ClipEachOptimWrapper, DINOHook

__all__ = [
    'DINO',
    'ClipEachAmpOptimWrapper',
    'ClipEachOptimWrapper',
    'DINOHook',
    'DINOLoss',
    'Digits',
    'KNNTestLoop',
    'Probe',
    'Projection',
]
