"""What published checkpoints call their tensors, and what mmsoft calls them.

Every family has one table of pairs, published name first, that is read in both directions. With the pair
``('att.mha.W_q', 'attn.query')`` of ``_SOFT_BLOCK``, for example, ``block1.0.att.mha.W_q.weight`` of SOFT's authors is
``backbone.stages.0.blocks.0.attn.query.weight`` here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from re import Pattern
from typing import Optional, Union

import torch
from torch import Tensor

from .io import CheckpointError, StateDict

BACKBONE = 'backbone.'


@dataclass(frozen=True)
class Family:
    """Names of a family of networks.

    Our side of the table leaves out the ``backbone.`` in front. The classifier, ``head`` in published files, is
    ``head.fc`` in mmpretrain. Names without a rule pass through unchanged.

    Args:
        name (str): :attr:`BaseBackbone.published` of its backbone.
        signature (tuple[str]): Published names that together occur only in this family, in all its sizes.
        own_signature (tuple[str]): Our names, likewise; none of an attention, which can be exchanged.
        rules (Sequence[tuple]): Pairs (published module, our module); ``*`` stands for one number. Where we fuse
            several linear maps, the published side is a dict of modules and the shares of their output rows. If two
            rules have the same module of ours, the first gives the published name.
        attention (str): Attention that published files were trained with, '' if they do not tell.
        weights (str): Where to get weights.
        entry (str): Key of the state dict in the authors' files.
        resize (str): Interpolation that the authors resize position embeddings with.
    """

    name: str
    signature: tuple[str, ...]
    own_signature: tuple[str, ...]
    rules: Sequence[tuple[Union[str, Mapping[str, int]], str]]
    attention: str
    weights: str
    entry: str = 'model'
    resize: str = 'bilinear'

    def to_mmsoft(self, state_dict: StateDict) -> StateDict:
        """Published names to ours, ``backbone.*`` and ``head.fc.*``; fused tensors are made anew.

        Raises:
            CheckpointError: If a part of a fused tensor is missing or does not fit the others.
        """
        parts: dict[tuple[str, int], dict[int, Tensor]] = {}
        for name, tensor in state_dict.items():
            found = (
                (_rename(name, theirs, ours), part, len(modules))
                for modules, ours in self._table
                for part, theirs in enumerate(modules)
            )
            ours, part, count = next((one for one in found if one[0]), (name, 0, 1))
            parts.setdefault((ours, count), {})[part] = tensor
        return {name: _join(name, [found.get(i) for i in range(count)]) for (name, count), found in parts.items()}

    def to_published(self, state_dict: StateDict) -> StateDict:
        """Our names, ``backbone.`` in front, to the published ones: the inverse of :meth:`to_mmsoft`, bit by bit."""
        published = {}
        for name, tensor in state_dict.items():
            for modules, ours in self._table:
                if _rename(name, ours, ours):
                    parts = _split(name, tensor, list(modules.values()))
                    published.update((_rename(name, ours, theirs), part) for theirs, part in zip(modules, parts))
                    break
            else:
                published[name] = tensor
        return published

    @cached_property
    def _table(self) -> list[tuple[Mapping[str, int], str]]:
        rules = [*((published, BACKBONE + ours) for published, ours in self.rules), ('head', 'head.fc')]
        return [({published: 1} if isinstance(published, str) else published, ours) for published, ours in rules]


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
_NORMS = [('norm1', 'norm1'), ('norm2', 'norm2')]
_MLP = [('mlp.fc1', 'ffn.layers.0.0'), ('mlp.fc2', 'ffn.layers.1')]
_VIT_BLOCK = [*_NORMS, ('attn.qkv', 'attn.qkv'), ('attn.proj', 'attn.proj'), *_MLP]
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
    *_NORMS,
    *(
        (f'attn.conv_proj_{x}.{theirs}', f'attn.qkv.{x}.{ours}')
        for x in 'qkv'
        for theirs, ours in (('conv', 'conv'), ('bn', 'norm'))
    ),
    *((f'attn.proj_{x}', f'attn.qkv.{x}.proj') for x in 'qkv'),
    ('attn.proj', 'attn.proj'),
    *_MLP,
]

SOFT = Family(
    name='soft',
    signature=('patch_embed1.proj.0.weight', 'block1.0.att.mha.W_q.weight'),
    own_signature=('stages.0.pos_embed', 'stages.0.embed.0.conv.weight'),
    rules=[
        *(
            (f'patch_embed1.proj.{3 * i + j}', f'stages.0.embed.{i}.{layer}')
            for i in range(3)
            for j, layer in enumerate(('conv', 'norm'))
        ),
        *(
            (f'patch_embed{stage + 1}.proj.{j}', f'stages.{stage}.embed.0.{layer}')
            for stage in (1, 2, 3)
            for j, layer in enumerate(('conv', 'norm'))
        ),
        *((f'pos_embed{stage + 1}', f'stages.{stage}.pos_embed') for stage in range(4)),
        *(
            (f'block{stage + 1}.*.{theirs}', f'stages.{stage}.blocks.*.{ours}')
            for stage in range(3)
            for theirs, ours in _SOFT_BLOCK
        ),
        *(
            (f'block4.*.{theirs}', f'stages.3.blocks.*.{ours}')
            for theirs, ours in [*_NORMS, ('attn.proj', 'attn.proj'), *_MLP]
        ),
        ({'block4.*.attn.q': 1, 'block4.*.attn.kv': 2}, 'stages.3.blocks.*.attn.qkv'),
        ('cls_token', 'stages.3.cls_token'),
        ('norm', 'norm'),
    ],
    attention='',
    weights='github.com/fudan-zvg/SOFT links ImageNet weights of SOFT-Tiny and of SOFT-Norm Tiny to Large',
    entry='state_dict',
)

SIMA_XCIT = Family(
    name='sima_xcit',
    signature=('patch_embed.proj.0.0.weight', 'blocks.0.gamma1', 'blocks.0.attn.qkv.weight'),
    own_signature=('patch_embed.convs.0.conv.weight', 'pos_encoding.proj.weight'),
    rules=[
        *(
            (f'patch_embed.proj.{2 * i}.{j}', f'patch_embed.convs.{i}.{layer}')
            for i in range(4)
            for j, layer in enumerate(('conv', 'norm'))
        ),
        ('pos_embeder.token_projection', 'pos_encoding.proj'),
        *((f'blocks.*.{theirs}', f'blocks.*.{ours}') for theirs, ours in _XCIT_BLOCK),
        ('cls_token', 'cls_token'),
        *((f'cls_attn_blocks.*.{theirs}', f'cls_blocks.*.{ours}') for theirs, ours in _CLASS_BLOCK),
        ('norm', 'norm'),
        # timm's names where they differ from the authors'.
        ('pos_embed.token_projection', 'pos_encoding.proj'),
        ({f'cls_attn_blocks.*.attn.{x}': 1 for x in 'qkv'}, 'cls_blocks.*.attn.qkv'),
    ],
    attention='XCA',
    weights="SimA's authors published no weights; start from XCiT's (github.com/facebookresearch/xcit)",
)

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
    attention='SoftmaxAttention',
    weights="SimA's authors published no weights; start from DeiT's (github.com/facebookresearch/deit)",
    resize='bicubic',
)

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
    attention='SoftmaxAttention',
    weights="SimA's authors published no weights; start from CvT's (github.com/microsoft/CvT)",
)

FAMILIES: dict[str, Family] = {family.name: family for family in (SOFT, SIMA_XCIT, SIMA_DEIT, SIMA_CVT)}
"""Every family of networks whose published checkpoints are understood, by name."""


def published_family(names: Iterable[str]) -> Optional[Family]:
    """The family whose published names these are, if any."""
    names = set(names)
    return next((family for family in FAMILIES.values() if names.issuperset(family.signature)), None)


def to_mmsoft(state_dict: StateDict) -> tuple[Optional[Family], StateDict]:
    """Names of a published state dict or of one of ours, whole model or backbone alone, to those of a model of ours.

    Args:
        state_dict (dict[str, Tensor]): Tensors; ``backbone.`` may stand in front of names of either kind.

    Returns:
        tuple[Family or None, dict[str, Tensor]]: The family, None for a network that is not ours, and the tensors
        under the names ``backbone.*`` and ``head.fc.*``; names that are neither are unchanged.
    """
    bare = without_prefix(state_dict)
    family = published_family(bare)
    if family:
        return family, family.to_mmsoft(bare)
    for family in FAMILIES.values():
        for prefix in ('', BACKBONE):
            if all((BACKBONE + name)[len(prefix) :] in state_dict for name in family.own_signature):
                return family, {prefix + name: tensor for name, tensor in state_dict.items()}
    return None, dict(state_dict)


def to_published(state_dict: StateDict) -> tuple[Optional[Family], StateDict]:
    """The inverse of :func:`to_mmsoft`: our names, of a whole model or of a backbone alone, to those of the authors."""
    family, ours = to_mmsoft(state_dict)
    return family, family.to_published(ours) if family else ours


def without_prefix(state_dict: StateDict) -> StateDict:
    """The same tensors, ``backbone.`` removed from the front of their names."""
    return {name[len(BACKBONE) :] if name.startswith(BACKBONE) else name: t for name, t in state_dict.items()}


def _join(name: str, parts: list[Optional[Tensor]]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    if any(part is None or part.dim() == 0 for part in parts) or len({part.shape[1:] for part in parts}) > 1:
        raise CheckpointError(
            f'the {len(parts)} tensors that make {name} are not all in the checkpoint or do not fit '
            'each other; it is damaged, get it again.'
        )
    return torch.cat(parts)


def _split(name: str, tensor: Tensor, shares: list[int]) -> Sequence[Tensor]:
    if len(shares) == 1:
        return [tensor]
    if tensor.dim() == 0 or len(tensor) % sum(shares):
        raise CheckpointError(
            f'{name} is of shape {tuple(tensor.shape)} in the checkpoint and cannot be split; it is '
            'damaged, get it again.'
        )
    return tensor.split([len(tensor) * share // sum(shares) for share in shares])


def _rename(name: str, module: str, other: str) -> Optional[str]:
    """What a parameter of ``module`` is called in ``other``, where ``*`` is the same number; None if it is of none."""
    match = _regex(module).fullmatch(name)
    return match and (other.replace('*', '{}') + '{}').format(*match.groups(default=''))


@cache
def _regex(module: str) -> Pattern:
    return re.compile(re.escape(module).replace(r'\*', r'(\d+)') + r'(\.[a-z_]+)?')
