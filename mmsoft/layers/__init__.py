from .blocks import FFN, PostNormBlock, PreNormBlock, apply_block
from .embed import ConvNormAct, PatchConv, PatchEmbed
from .maps import pad_to_multiple, resize_pos_embed, to_map, to_tokens
from .xcit import ClassAttentionBlock, ConvPatchEmbed, FourierPositionEncoding, XCiTBlock, extent_mask, image_extent

__all__ = [
    'FFN',
    'ClassAttentionBlock',
    'ConvNormAct',
    'ConvPatchEmbed',
    'FourierPositionEncoding',
    'PatchConv',
    'PatchEmbed',
    'PostNormBlock',
    'PreNormBlock',
    'XCiTBlock',
    'apply_block',
    'extent_mask',
    'image_extent',
    'pad_to_multiple',
    'resize_pos_embed',
    'to_map',
    'to_tokens',
]
