from .flops import FLOP_HANDLES, count_flops
from .sizes import SIZES, ModelSize, measure, size_table

__all__ = ['FLOP_HANDLES', 'ModelSize', 'SIZES', 'count_flops', 'measure', 'size_table']
