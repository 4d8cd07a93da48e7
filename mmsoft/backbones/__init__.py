from .sima_cvt import SimACvT
from .sima_deit import SimADeiT
from .sima_xcit import SimAXCiT
from .soft import SOFT

__all__ = ['SOFT', 'SimACvT', 'SimADeiT', 'SimAXCiT']
