from .attention import MultiheadAttention, SOFTAttention, softmax_attention
from .blocks import PostNormBlock, PreNormBlock, apply_block
from .bottleneck import BottleneckTokens
from .conv_attention import ConvAttention, QuickGELU
from .embed import ConvNormAct, ConvPatchEmbed, FourierPositionEncoding, PosEmbedResizer, resize_pos_embed
from .padding import extent_mask, image_extent, pad_to_multiple
from .token_map import to_map, to_tokens
from .xcit import ClassAttentionBlock, XCiTBlock

__all__ = [
    'BottleneckTokens', 'ClassAttentionBlock', 'ConvAttention', 'ConvNormAct', 'ConvPatchEmbed',
    'FourierPositionEncoding', 'MultiheadAttention', 'PosEmbedResizer', 'PostNormBlock', 'PreNormBlock', 'QuickGELU',
    'SOFTAttention', 'XCiTBlock', 'apply_block', 'extent_mask', 'image_extent', 'pad_to_multiple', 'resize_pos_embed',
    'softmax_attention', 'to_map', 'to_tokens'
]
