"""Names of tensors in published checkpoints, and in mmsoft.

The rules of a family replace parts of published names one after the other. For example, those of SOFT turn
``block1.0.att.mha.W_q.weight`` into ``stages.0.blocks.0.attn.query.weight``, behind ``backbone.`` in whole models.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from .io import CheckpointError, StateDict

BACKBONE = 'backbone.'


@dataclass(frozen=True)
class Family:
    """Names of a family of networks.

    In all sizes, a family has the published names of its ``signature``; no other family has all of them. None is of an
    attention, which can be exchanged. Their translations identify our own files.
    """

    name: str  #: :attr:`BaseBackbone.published` of its backbone.
    signature: tuple[str, ...]
    rules: Mapping[str, str]  #: Parts of published names and what replaces them, in this order.
    resize: str = 'bilinear'  #: Interpolation that the authors resize position embeddings with.

    def rename(self, name: str) -> str:
        """Translates a published name of the backbone to ours, without the prefix ``backbone.``."""
        for theirs, ours in self.rules.items():
            name = name.replace(theirs, ours)
        return name

    def translate(self, state_dict: StateDict) -> StateDict:
        """Translates published names after ``backbone.``, and joins q, k and v. CheckpointError if one is missing."""
        parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in state_dict.items():
            ours = self.rename(name) if name.startswith(BACKBONE) else name
            part = ''
            if separate := re.fullmatch(r'(backbone\..*\.attn\.)(q|k|kv|v)(\.\w+)', ours):
                ours, part = f'{separate[1]}qkv{separate[3]}', separate[2]
            parts[re.sub(r'^head\.(weight|bias)$', r'head.fc.\1', ours)][part] = tensor
        return {name: _join(name, found) for name, found in parts.items()}


_BLOCK = {'mlp.fc1': 'ffn.layers.0.0', 'mlp.fc2': 'ffn.layers.1'}
_LAYER = ('conv', 'norm')

SOFT = Family(
    name='soft',
    signature=('patch_embed1.proj.0.weight', 'block1.0.att.norm1.weight'),
    rules={
        **{f'{part}{i + 1}': f'stages.{i}.{part}' for i in range(4) for part in ('patch_embed', 'pos_embed', 'block')},
        # The activation of each layer is numbered, too.
        **{f'patch_embed.proj.{3 * i + j}.': f'embed.{i}.{_LAYER[j]}.' for i in range(3) for j in range(2)},
        '.block.': '.blocks.',
        'att.mha.W_q': 'attn.query',
        'att.mha.W_v': 'attn.value',
        'att.mha.attn.Qlandmark_op': 'attn.bottleneck.conv',
        'att.mha.attn.Qnorm_act.0': 'attn.bottleneck.norm',
        'att.mha.attn.conv': 'attn.conv',
        'att.mha.ff': 'attn.proj',
        'att.norm': 'norm',
        'att.ff1': 'ffn.layers.0.0',
        'att.ff2': 'ffn.layers.1',
        'cls_token': 'stages.3.cls_token',
        **_BLOCK,
    },
)

SIMA_XCIT = Family(
    name='sima_xcit',
    signature=('patch_embed.proj.0.0.weight', 'blocks.0.gamma1'),
    rules={
        **{f'patch_embed.proj.{2 * i}.{j}.': f'patch_embed.convs.{i}.{_LAYER[j]}.' for i in range(4) for j in range(2)},
        'pos_embeder.token_projection': 'pos_encoding.proj',
        'pos_embed.token_projection': 'pos_encoding.proj',  # timm's name
        'local_mp.bn': 'lpi.norm',
        'local_mp': 'lpi',
        'cls_attn_blocks': 'cls_blocks',
        **_BLOCK,
    },
)

SIMA_DEIT = Family(
    name='sima_deit',
    signature=('pos_embed', 'patch_embed.proj.weight', 'blocks.0.norm1.weight', 'blocks.0.mlp.fc1.weight'),
    rules={'patch_embed.proj': 'patch_embed', **_BLOCK},
    resize='bicubic',
)

SIMA_CVT = Family(
    name='sima_cvt',
    signature=('stage0.patch_embed.proj.weight', 'stage0.blocks.0.mlp.fc1.weight'),
    rules={
        'stage': 'stages.',
        'patch_embed.proj': 'embed',
        'patch_embed.norm': 'norm',
        '.attn.conv_proj_': '.attn.qkv.',
        '.bn.': '.norm.',
        **{f'.attn.proj_{x}': f'.attn.qkv.{x}.proj' for x in 'qkv'},
        **_BLOCK,
    },
)

#: Every family of networks whose published checkpoints are understood, by name.
FAMILIES: dict[str, Family] = {family.name: family for family in (SOFT, SIMA_XCIT, SIMA_DEIT, SIMA_CVT)}


def find_family(names: Iterable[str]) -> tuple[Optional[Family], bool]:
    """The family of a backbone with these parameter names, None if it is not ours, and whether they are published."""
    names = set(names)
    for family in FAMILIES.values():
        if names >= set(family.signature):
            return family, True
        if names >= set(map(family.rename, family.signature)):
            return family, False
    return None, False


def to_mmsoft(state_dict: StateDict) -> tuple[Optional[Family], StateDict]:
    """Renames a state dict, published or ours, of a whole model or of a backbone alone, to names of our models.

    Names of either kind may have the prefix ``backbone.``. Returns the family, None for a network that is not ours, and
    the tensors: the backbone's under ``backbone.*``, a classifier's ``head`` under ``head.fc``, others unchanged.
    """
    family, is_published = find_family(without_prefix(state_dict))
    if family is None:
        return None, dict(state_dict)
    whole = {}
    prefix = BACKBONE if any(name.startswith(BACKBONE) for name in state_dict) else ''
    for name, tensor in state_dict.items():
        if name.startswith(prefix):
            name = name[len(prefix) :]
            name = name if name.startswith('head') else BACKBONE + name
        whole[name] = tensor
    return family, family.translate(whole) if is_published else whole


def without_prefix(state_dict: StateDict) -> StateDict:
    """The same tensors, without the prefix ``backbone.`` in their names."""
    return {name.removeprefix(BACKBONE): tensor for name, tensor in state_dict.items()}


def _join(name: str, parts: dict[str, Tensor]) -> Tensor:
    if '' in parts:
        return parts['']
    kinds, tensors = zip(*sorted(parts.items(), key=lambda item: 'qkv'.index(item[0][0])))
    if ''.join(kinds) != 'qkv' or not all(t.dim() and t.shape[1:] == tensors[0].shape[1:] for t in tensors):
        wrong = 'are not all in the checkpoint or do not fit each other; it is damaged, get it again'
        raise CheckpointError(f'The tensors that make {name} {wrong}.')
    return torch.cat(tensors)
