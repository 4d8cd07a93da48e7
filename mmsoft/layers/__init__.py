from .attention import MultiheadAttention, SOFTAttention, softmax_attention
from .blocks import PostNormBlock, PreNormBlock, apply_block
from .bottleneck import BottleneckTokens
from .conv_attention import ConvAttention, QuickGELU
from .embed import ConvPatchEmbed, FourierPositionEncoding, conv_norm_act, resize_pos_embed
from .padding import extent_mask, image_extent, pad_to_multiple
from .xcit import ClassAttentionBlock, XCiTBlock

__all__ = [
    'BottleneckTokens', 'ClassAttentionBlock', 'ConvAttention', 'ConvPatchEmbed', 'FourierPositionEncoding',
    'MultiheadAttention', 'PostNormBlock', 'PreNormBlock', 'QuickGELU', 'SOFTAttention', 'XCiTBlock', 'apply_block',
    'conv_norm_act', 'extent_mask', 'image_extent', 'pad_to_multiple', 'resize_pos_embed', 'softmax_attention'
]
