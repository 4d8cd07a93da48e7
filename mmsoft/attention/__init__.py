from .base import Attention, MultiheadAttention, Site, build_attention
from .efficient import EfficientAttention
from .gaussian import GaussianAttention
from .sima import SimAAttention, SimAClassAttention
from .soft import SOFTAttention
from .softmax import SoftmaxAttention

__all__ = [
    'Attention', 'EfficientAttention', 'GaussianAttention', 'MultiheadAttention', 'SOFTAttention', 'SimAAttention',
    'SimAClassAttention', 'Site', 'SoftmaxAttention', 'build_attention'
]
