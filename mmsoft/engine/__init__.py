"""What training adds to mmengine's engine."""

from .amp import BFloat16OptimWrapper
from .attention_share import AttentionShareHook, WithoutAttentionHook
from .checkpoints import FiniteTrainingHook, WholeCheckpointsHook, latest_checkpoint
from .layer_decay import LayerDecayOptimWrapperConstructor
from .loops import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

__all__ = [
    'AttentionShareHook',
    'BFloat16OptimWrapper',
    'EpochBasedTrainLoop',
    'FiniteTrainingHook',
    'IterBasedTrainLoop',
    'LayerDecayOptimWrapperConstructor',
    'Runner',
    'WholeCheckpointsHook',
    'WithoutAttentionHook',
    'latest_checkpoint',
]
