from .blocks import PostNormBlock, PreNormBlock, apply_block
from .embed import ConvNormAct, ConvPatchEmbed, PatchEmbed
from .ffn import FFN, QuickGELU
from .padding import extent_mask, image_extent, one_by_one, pad_to_multiple
from .position import FourierPositionEncoding, resize_pos_embed
from .projection import ConvQKV, LinearQKV
from .token_map import to_map, to_tokens
from .xcit import ClassAttentionBlock, XCiTBlock

__all__ = [
    'ClassAttentionBlock', 'ConvNormAct', 'ConvPatchEmbed', 'ConvQKV', 'FFN', 'FourierPositionEncoding', 'LinearQKV',
    'PatchEmbed', 'PostNormBlock', 'PreNormBlock', 'QuickGELU', 'XCiTBlock', 'apply_block', 'extent_mask',
    'image_extent', 'one_by_one', 'pad_to_multiple', 'resize_pos_embed', 'to_map', 'to_tokens'
]
