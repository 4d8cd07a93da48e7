from .gain import matched_attention
from .gaussian import gaussian_kernel, gaussian_product
from .inverse import inverse_product, newton_inverse
from .l1 import l1_attention, l1_class_attention
from .soft import soft_attention, soft_norm_attention

__all__ = [
    'gaussian_kernel',
    'gaussian_product',
    'inverse_product',
    'l1_attention',
    'l1_class_attention',
    'matched_attention',
    'newton_inverse',
    'soft_attention',
    'soft_norm_attention',
]
