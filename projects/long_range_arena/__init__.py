"""SOFT's second experiment: long sequences. See README.md."""

from .listops import ListOps
from .pathfinder import Pathfinder
from .sequences import PadSequences, SequenceClassifier

__all__ = ['ListOps', 'PadSequences', 'Pathfinder', 'SequenceClassifier']
