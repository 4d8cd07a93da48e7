"""What training adds to the hosts' own engine."""
from .amp import BFloat16OptimWrapper
from .checkpoints import WholeCheckpointsHook, latest_checkpoint
from .finite import FiniteTrainingHook
from .layer_decay import LayerDecayOptimWrapperConstructor
from .reproducible import ReproducibleTrainingHook

__all__ = [
    'BFloat16OptimWrapper', 'FiniteTrainingHook', 'LayerDecayOptimWrapperConstructor', 'ReproducibleTrainingHook',
    'WholeCheckpointsHook', 'latest_checkpoint'
]
