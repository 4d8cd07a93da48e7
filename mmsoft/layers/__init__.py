from .attention import MultiheadAttention, SOFTAttention, softmax_attention
from .blocks import PostNormBlock, PreNormBlock
from .bottleneck import BottleneckTokens
from .embed import conv_norm_act, resize_pos_embed

__all__ = [
    'BottleneckTokens', 'MultiheadAttention', 'PostNormBlock', 'PreNormBlock', 'SOFTAttention', 'conv_norm_act',
    'resize_pos_embed', 'softmax_attention'
]
