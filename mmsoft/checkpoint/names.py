"""One network, two sets of names: what a published checkpoint calls its tensors and what mmsoft calls them."""
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Dict, Iterable, List, Mapping, Optional, Pattern, Sequence, Tuple, Union

import torch
from torch import Tensor

from .errors import CheckpointError

StateDict = Dict[str, Tensor]
BACKBONE = 'backbone.'


@dataclass(frozen=True)
class Family:
    """Names of a family of networks, as a table that is read in both directions.

    mmsoft's side of the table leaves out the ``backbone.`` in front. The classifier, ``head`` in every published file,
    is ``head.fc`` in mmpretrain. Names that no rule covers pass through unchanged, so nothing is lost on the way.

    Args:
        name (str): What the backbone calls the family in :attr:`BaseBackbone.published`.
        signature (tuple[str]): Published names that together only occur in this family, in all its sizes.
        own_signature (tuple[str]): Our names, the same; none of an attention, which can be exchanged.
        rules (Sequence[tuple]): Pairs (published module, our module); ``*`` stands for one number. Where we fuse
            several linear maps, the published side is a dict of modules and the shares of their output rows.
        entry (str): Key of the state dict in the authors' files.
        resize (str): Interpolation that the authors resize position embeddings with.
    """

    name: str
    signature: Tuple[str, ...]
    own_signature: Tuple[str, ...]
    rules: Sequence[Tuple[Union[str, Mapping[str, int]], str]]
    entry: str = 'state_dict'
    resize: str = 'bilinear'

    def is_published(self, names: Iterable[str]) -> bool:
        """Whether these are the published names of this family."""
        return set(self.signature) <= set(names)

    def is_ours(self, names: Iterable[str]) -> bool:
        """Whether these are our names of this family, ``backbone.`` in front."""
        return {BACKBONE + name for name in self.own_signature} <= set(names)

    def to_mmsoft(self, state_dict: StateDict) -> StateDict:
        """Published names to ours, ``backbone.*`` and ``head.fc.*``.

        Args:
            state_dict (dict[str, Tensor]): Tensors of any shape and dtype.

        Returns:
            dict[str, Tensor]: The same tensors, fused ones made anew.

        Raises:
            CheckpointError: If a part of a fused tensor is missing or does not fit the others.
        """
        pieces: Dict[str, Dict[int, Tensor]] = {}
        sizes: Dict[str, int] = {}
        for name, tensor in state_dict.items():
            ours, part, sizes[ours] = self._renamed(name)
            pieces.setdefault(ours, {})[part] = tensor
        for name, parts in pieces.items():
            if len(parts) != sizes[name]:
                raise CheckpointError(f'only {len(parts)} of the {sizes[name]} tensors that make {name} are in the '
                                      'checkpoint; it is damaged, get it again.')
        return {name: parts[0] if len(parts) == 1 else _joined(name, parts) for name, parts in pieces.items()}

    def to_published(self, state_dict: StateDict) -> StateDict:
        """Our names to the published ones: the inverse of :meth:`to_mmsoft`, bit by bit.

        Args:
            state_dict (dict[str, Tensor]): Tensors of any dtype, ``backbone.`` in front of the backbone's names.

        Returns:
            dict[str, Tensor]: The same tensors; parts of fused ones are views.
        """
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

    def _renamed(self, name: str) -> Tuple[str, int, int]:
        """Our name of a published tensor, which part of ours it is, and of how many."""
        for modules, ours in self._table:
            for part, theirs in enumerate(modules):
                renamed = _rename(name, theirs, ours)
                if renamed:
                    return renamed, part, len(modules)
        return name, 0, 1

    @cached_property
    def _table(self) -> List[Tuple[Mapping[str, int], str]]:
        rules = [*((published, BACKBONE + ours) for published, ours in self.rules), ('head', 'head.fc')]
        return [({published: 1} if isinstance(published, str) else published, ours) for published, ours in rules]


def _joined(name: str, parts: Mapping[int, Tensor]) -> Tensor:
    ordered = [parts[i] for i in range(len(parts))]
    if any(part.dim() == 0 or part.shape[1:] != ordered[0].shape[1:] for part in ordered):
        raise CheckpointError(f'the tensors that make {name} do not fit each other in the checkpoint; it is damaged, '
                              'get it again.')
    return torch.cat(ordered)


def _split(name: str, tensor: Tensor, shares: List[int]) -> Sequence[Tensor]:
    if len(shares) == 1:
        return [tensor]
    if tensor.dim() == 0 or len(tensor) % sum(shares):
        raise CheckpointError(f'{name} is of shape {tuple(tensor.shape)} in the checkpoint and cannot be split; it is '
                              'damaged, get it again.')
    return tensor.split([len(tensor) * share // sum(shares) for share in shares])


def _rename(name: str, module: str, other: str) -> Optional[str]:
    """What a parameter of ``module`` is called in ``other``, where ``*`` is the same number; None if it is of none."""
    match = _regex(module).fullmatch(name)
    return match and (other.replace('*', '{}') + '{}').format(*match.groups(default=''))


@lru_cache(maxsize=None)
def _regex(module: str) -> Pattern:
    return re.compile(re.escape(module).replace(r'\*', r'(\d+)') + r'(\.[a-z_]+)?')
