"""Published names of SOFT and SOFT-Norm."""
from .names import Family

_STEM = [(f'patch_embed1.proj.{3 * i + j}', f'stages.0.embed.{i}.{layer}')
         for i in range(3) for j, layer in enumerate(('conv', 'norm'))]

_DOWNSAMPLING = [(f'patch_embed{stage + 1}.proj.{j}', f'stages.{stage}.embed.0.{layer}')
                 for stage in (1, 2, 3) for j, layer in enumerate(('conv', 'norm'))]

_POSITIONS = [(f'pos_embed{stage + 1}', f'stages.{stage}.pos_embed') for stage in range(4)]

_SOFT_BLOCK = [
    ('att.mha.W_q', 'attn.query'),
    ('att.mha.W_v', 'attn.value'),
    ('att.mha.attn.Qlandmark_op', 'attn.bottleneck.conv'),
    ('att.mha.attn.Qnorm_act.0', 'attn.bottleneck.norm'),
    ('att.mha.attn.conv', 'attn.conv'),
    ('att.mha.ff', 'attn.proj'),
    ('att.norm1', 'norm1'),
    ('att.ff1', 'ffn.layers.0.0'),
    ('att.ff2', 'ffn.layers.1'),
    ('att.norm2', 'norm2'),
]

_SOFTMAX_BLOCK = [
    ('norm1', 'norm1'),
    ('attn.proj', 'attn.proj'),
    ('norm2', 'norm2'),
    ('mlp.fc1', 'ffn.layers.0.0'),
    ('mlp.fc2', 'ffn.layers.1'),
]

SOFT = Family(
    name='soft',
    signature=('patch_embed1.proj.0.weight', 'block1.0.att.mha.W_q.weight'),
    own_signature=('stages.0.pos_embed', 'stages.0.embed.0.conv.weight'),
    rules=[
        *_STEM,
        *_DOWNSAMPLING,
        *_POSITIONS,
        *((f'block{stage + 1}.*.{theirs}', f'stages.{stage}.blocks.*.{ours}')
          for stage in range(3) for theirs, ours in _SOFT_BLOCK),
        *((f'block4.*.{theirs}', f'stages.3.blocks.*.{ours}') for theirs, ours in _SOFTMAX_BLOCK),
        ({'block4.*.attn.q': 1, 'block4.*.attn.kv': 2}, 'stages.3.blocks.*.attn.qkv'),
        ('cls_token', 'stages.3.cls_token'),
        ('norm', 'norm'),
    ])
