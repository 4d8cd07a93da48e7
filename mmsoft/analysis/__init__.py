from .flops import FLOP_HANDLES, count_flops

__all__ = ['FLOP_HANDLES', 'count_flops']
