"""Published names of the bodies of SimA: XCiT's, DeiT's and CvT's, whose softmax files have the same names."""
from .names import Family

_MLP = [('mlp.fc1', 'ffn.layers.0.0'), ('mlp.fc2', 'ffn.layers.1')]

_VIT_BLOCK = [*((name, name) for name in ('norm1', 'attn.qkv', 'attn.proj', 'norm2')), *_MLP]

_CLASS_BLOCK = [*_VIT_BLOCK, ('gamma1', 'gamma1'), ('gamma2', 'gamma2')]

_XCIT_BLOCK = [
    *_CLASS_BLOCK,
    ('gamma3', 'gamma3'),
    ('norm3', 'norm3'),
    ('local_mp.conv1', 'lpi.conv1'),
    ('local_mp.bn', 'lpi.norm'),
    ('local_mp.conv2', 'lpi.conv2'),
]

_CVT_BLOCK = [
    ('norm1', 'norm1'),
    *((f'attn.conv_proj_{x}.{theirs}', f'attn.qkv.{x}.{ours}') for x in 'qkv'
      for theirs, ours in (('conv', 'conv'), ('bn', 'norm'))),
    *((f'attn.proj_{x}', f'attn.qkv.{x}.proj') for x in 'qkv'),
    ('attn.proj', 'attn.proj'),
    ('norm2', 'norm2'),
    *_MLP,
]

SIMA_XCIT = Family(
    name='sima_xcit',
    signature=('patch_embed.proj.0.0.weight', 'pos_embeder.token_projection.weight'),
    own_signature=('patch_embed.convs.0.conv.weight', 'pos_encoding.proj.weight'),
    rules=[
        *((f'patch_embed.proj.{2 * i}.{j}', f'patch_embed.convs.{i}.{layer}')
          for i in range(4) for j, layer in enumerate(('conv', 'norm'))),
        ('pos_embeder.token_projection', 'pos_encoding.proj'),
        *((f'blocks.*.{theirs}', f'blocks.*.{ours}') for theirs, ours in _XCIT_BLOCK),
        ('cls_token', 'cls_token'),
        *((f'cls_attn_blocks.*.{theirs}', f'cls_blocks.*.{ours}') for theirs, ours in _CLASS_BLOCK),
        ('norm', 'norm'),
    ],
    entry='model')

SIMA_DEIT = Family(
    name='sima_deit',
    signature=('pos_embed', 'patch_embed.proj.weight', 'blocks.0.attn.qkv.weight'),
    own_signature=('pos_embed', 'patch_embed.weight', 'blocks.0.norm1.weight'),
    rules=[
        ('patch_embed.proj', 'patch_embed'),
        ('cls_token', 'cls_token'),
        ('pos_embed', 'pos_embed'),
        *((f'blocks.*.{theirs}', f'blocks.*.{ours}') for theirs, ours in _VIT_BLOCK),
        ('norm', 'norm'),
    ],
    entry='model',
    resize='bicubic')

SIMA_CVT = Family(
    name='sima_cvt',
    signature=('stage0.patch_embed.proj.weight', 'stage0.blocks.0.attn.conv_proj_q.conv.weight'),
    own_signature=('stages.0.embed.weight', 'stages.0.norm.weight', 'stages.0.blocks.0.norm1.weight'),
    rules=[
        ('stage*.patch_embed.proj', 'stages.*.embed'),
        ('stage*.patch_embed.norm', 'stages.*.norm'),
        ('stage*.cls_token', 'stages.*.cls_token'),
        *((f'stage*.blocks.*.{theirs}', f'stages.*.blocks.*.{ours}') for theirs, ours in _CVT_BLOCK),
        ('norm', 'norm'),
    ],
    entry='model')
