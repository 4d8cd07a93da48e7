"""What training adds to mmengine's engine."""

from .attention_share import AttentionShareHook
from .checkpoints import FiniteTrainingHook, WholeCheckpointsHook, latest_checkpoint
from .layer_decay import LayerDecayOptimWrapperConstructor
from .loops import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

__all__ = [
    'AttentionShareHook',
    'EpochBasedTrainLoop',
    'FiniteTrainingHook',
    'IterBasedTrainLoop',
    'LayerDecayOptimWrapperConstructor',
    'Runner',
    'WholeCheckpointsHook',
    'latest_checkpoint',
]
