"""What training adds to the hosts' own engine."""
from .amp import BFloat16OptimWrapper
from .layer_decay import LayerDecayOptimWrapperConstructor

__all__ = ['BFloat16OptimWrapper', 'LayerDecayOptimWrapperConstructor']
