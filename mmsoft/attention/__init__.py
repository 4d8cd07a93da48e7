from .base import Attention, MultiheadAttention, Site, build_attention
from .cosformer import CosFormerAttention
from .efficient import EfficientAttention
from .gaussian import GaussianAttention
from .linformer import LinformerAttention
from .nystromformer import NystromformerAttention
from .performer import PerformerAttention
from .sima import SimAAttention, SimAClassAttention
from .soft import SOFTAttention
from .softmax import SoftmaxAttention, SoftmaxClassAttention

__all__ = [
    'Attention',
    'CosFormerAttention',
    'EfficientAttention',
    'GaussianAttention',
    'LinformerAttention',
    'MultiheadAttention',
    'NystromformerAttention',
    'PerformerAttention',
    'SOFTAttention',
    'SimAAttention',
    'SimAClassAttention',
    'Site',
    'SoftmaxAttention',
    'SoftmaxClassAttention',
    'build_attention',
]
