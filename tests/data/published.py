"""Files as the authors' trainers write them, filled with the reference weights."""

import argparse
import re
from pathlib import Path

import torch
from reference_weights import reference_state_dict

DATA = Path(__file__).parent
# Fixture, backbone and the key that the authors keep the weights under.
NETWORKS = dict(
    soft_tiny=(dict(type='mmsoft.SOFT', arch='tiny', attention_norm=False), 'state_dict'),
    soft_norm_tiny=(dict(type='mmsoft.SOFT', arch='tiny', attention_norm=True), 'state_dict'),
    sima_tiny_12_p16=(dict(type='mmsoft.SimAXCiT', arch='tiny-12-p16'), 'model'),
    deit_small_patch16_224=(dict(type='mmsoft.SimADeiT', arch='small'), 'model'),
    cvt_13=(dict(type='mmsoft.SimACvT', arch='13'), 'model'),
)


def published_state_dict(name):
    return reference_state_dict(DATA / f'{name}.keys.json')


# Our names, as patterns, and those of the authors: the way back from mmsoft.checkpoint's rules, by another way.
_STEM = {'conv': 0, 'norm': 1}
_FFN = [(r'ffn\.layers\.0\.0', 'mlp.fc1'), (r'ffn\.layers\.1', 'mlp.fc2')]
_SOFT_BLOCK = {
    'attn.query': 'mha.W_q',
    'attn.value': 'mha.W_v',
    'attn.bottleneck.conv': 'mha.attn.Qlandmark_op',
    'attn.bottleneck.norm': 'mha.attn.Qnorm_act.0',
    'attn.conv': 'mha.attn.conv',
    'attn.proj': 'mha.ff',
    'norm1': 'norm1',
    'norm2': 'norm2',
    'ffn.layers.0.0': 'ff1',
    'ffn.layers.1': 'ff2',
}
_TO_PUBLISHED = dict(
    soft=[
        (r'stages\.(\d)\.embed\.(\d)\.(conv|norm)',
         lambda m: f'patch_embed{int(m[1]) + 1}.proj.{3 * int(m[2]) + _STEM[m[3]]}'),
        (r'stages\.(\d)\.pos_embed', lambda m: f'pos_embed{int(m[1]) + 1}'),
        (r'stages\.3\.cls_token', 'cls_token'),
        (r'stages\.([012])\.blocks\.(\d+)\.(.*?)(?=\.\w+$)',
         lambda m: f'block{int(m[1]) + 1}.{m[2]}.att.{_SOFT_BLOCK[m[3]]}'),
        (r'stages\.3\.blocks', 'block4'),
        *_FFN,
    ],
    sima_xcit=[
        (r'patch_embed\.convs\.(\d)\.(conv|norm)', lambda m: f'patch_embed.proj.{2 * int(m[1])}.{_STEM[m[2]]}'),
        (r'pos_encoding\.proj', 'pos_embeder.token_projection'),
        (r'lpi\.norm', 'local_mp.bn'),
        (r'lpi', 'local_mp'),
        (r'cls_blocks', 'cls_attn_blocks'),
        *_FFN,
    ],
    sima_deit=[(r'patch_embed\.', 'patch_embed.proj.'), *_FFN],
    sima_cvt=[
        (r'stages\.(\d)\.', r'stage\1.'),
        (r'(stage\d)\.embed', r'\1.patch_embed.proj'),
        (r'(stage\d)\.norm', r'\1.patch_embed.norm'),
        (r'attn\.qkv\.(\w)\.conv', r'attn.conv_proj_\1.conv'),
        (r'attn\.qkv\.(\w)\.norm', r'attn.conv_proj_\1.bn'),
        (r'attn\.qkv\.(\w)\.proj', r'attn.proj_\1'),
        *_FFN,
    ],
)  # yapf: disable


def to_published(family, state_dict):
    """A model's state dict, ``backbone.`` in front or not, under the names of its family's authors."""
    published = {}
    for name, tensor in state_dict.items():
        name = re.sub(r'^head\.fc\.', 'head.', re.sub(r'^backbone\.', '', name))
        for ours, theirs in () if name.startswith('head.') else _TO_PUBLISHED[family]:
            name = re.sub(ours, theirs, name)
        if family == 'soft' and '.attn.qkv.' in name:
            dims = len(tensor) // 3
            published[name.replace('.qkv.', '.q.')] = tensor[:dims]
            published[name.replace('.qkv.', '.kv.')] = tensor[dims:]
        else:
            published[name] = tensor
    return published


def write_timm_file(path, state_dict, entry='state_dict', **others):
    """The averaged weights are the right ones, the others zeros; names start with ``module.``."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])
    args = argparse.Namespace(lr=1e-3, model='x')
    checkpoint = dict(epoch=299, arch='soft', optimizer=optimizer.state_dict(), args=args)
    checkpoint[entry] = {f'module.{name}': tensor for name, tensor in state_dict.items()}
    if entry == 'state_dict':
        checkpoint['state_dict_ema'] = checkpoint[entry]
        checkpoint[entry] = {name: torch.zeros_like(tensor) for name, tensor in checkpoint[entry].items()}
    torch.save({**checkpoint, **others}, path)
    return str(path)
