"""What training adds to the hosts' own engine."""
from .amp import CPUAmpOptimWrapper
from .layer_decay import LayerDecayOptimWrapperConstructor

__all__ = ['CPUAmpOptimWrapper', 'LayerDecayOptimWrapperConstructor']
