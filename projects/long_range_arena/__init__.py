"""SOFT's second experiment: long sequences. See README.md."""

from ..control import WithoutAttention
from .listops import ListOps
from .pathfinder import Pathfinder
from .sequences import EqualLengths, NoAttention, PadSequences, SequenceClassifier

__all__ = [
    'EqualLengths',
    'ListOps',
    'NoAttention',
    'PadSequences',
    'Pathfinder',
    'SequenceClassifier',
    'WithoutAttention',
]
