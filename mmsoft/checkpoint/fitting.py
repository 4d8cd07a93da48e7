"""Making the tensors of a checkpoint fit a backbone, or saying why they do not."""
from collections import Counter
from itertools import count, takewhile
from math import isqrt
from typing import Dict, Iterable, Optional, Tuple

from torch import Tensor, nn

from mmsoft.layers import resize_pos_embed
from .errors import CheckpointError
from .names import Family, StateDict


def fit(backbone: nn.Module, state_dict: StateDict, filename: str, family: Optional[Family]) -> Tuple[StateDict, str]:
    """Chooses the tensors that a backbone has, and resizes position embeddings of another grid in float32.

    Args:
        backbone (BaseBackbone): The backbone, as built.
        state_dict (dict[str, Tensor]): Tensors by the backbone's names.
        filename (str): Where they come from, for messages.
        family (Family, optional): The family that they belong to, None for a network that is not ours.

    Returns:
        tuple[dict[str, Tensor], str]: What the backbone can load, and a line on what is loaded, resized, left out and
        missing.

    Raises:
        CheckpointError: If the tensors belong to another network, to another size of this one, or have other shapes.
    """
    if family is None or family.name != backbone.published:
        kind = f'a network of the family {family.name}' if family else 'another network'
        raise CheckpointError(f'{filename} holds {kind}, nothing in it matches {type(backbone).__name__}; use a '
                              f'checkpoint of {type(backbone).__name__}.')
    _check_arch(backbone, state_dict, filename)
    own = backbone.state_dict()
    fitting, resized = {}, []
    for name in own:
        if name in state_dict:
            fitting[name] = state_dict[name]
            if fitting[name].shape != own[name].shape and name.endswith('pos_embed'):
                fitting[name], grids = _resize(fitting[name], own[name], family.resize)
                resized += [f'{name} {grids}'] if grids else []
            if fitting[name].shape != own[name].shape:
                raise CheckpointError(
                    f'{filename} has {name} of shape {tuple(fitting[name].shape)} where the backbone has '
                    f'{tuple(own[name].shape)}; build the backbone with the arguments that the file was made with.')
            if fitting[name].is_floating_point() != own[name].is_floating_point():
                raise CheckpointError(f'{filename} has {name} in {fitting[name].dtype} where the backbone has '
                                      f'{own[name].dtype}; save the weights as they were trained.')
    missing = [name for name in own if name not in fitting and not name.endswith('num_batches_tracked')]
    left_out = [name for name in state_dict if name not in own]
    return fitting, (f'{filename}: loaded {len(fitting)} of the {len(own)} tensors of {type(backbone).__name__}; '
                     f'resized: {", ".join(resized) or "none"}; left out: {_summary(left_out)}; '
                     f'missing: {_summary(missing)}')


def _check_arch(backbone: nn.Module, state_dict: StateDict, filename: str) -> None:
    """Compares the sizes of the stages that are in the file and in the backbone."""
    found, built, arch = _read_arch(state_dict), _read_arch(backbone.state_dict()), backbone.arch
    if not set(found) <= set(built):
        raise CheckpointError(f'{filename} lacks tensors that tell the size of its network; it is damaged, get it again.')
    differing = [name for name in found if not (_agree(found[name], built[name]) or found[name] == arch[name])]
    if not differing:
        return
    differences = ' and '.join(f'{name} {found[name]} where the backbone has {arch[name]}' for name in differing)
    named = [name for name, sizes in backbone.arch_settings.items() if found.items() <= sizes.items()]
    remedy = f'write arch={named[0]!r} to use it' if named else 'build the backbone in the sizes of the file'
    raise CheckpointError(f'{filename} has {differences}; {remedy}.')


def _read_arch(state_dict: StateDict) -> dict:
    """What a state dict tells of ``arch``."""
    if 'stages.0.blocks.0.norm1.weight' in state_dict:
        embed_dims = list(takewhile(bool, (_embed_dims(state_dict, f'stages.{i}.blocks') for i in count())))
        depths = [_count(state_dict, f'stages.{i}.blocks') for i in range(len(embed_dims))]
        return dict(embed_dims=embed_dims, depths=depths)
    arch = dict(embed_dims=_embed_dims(state_dict, 'blocks'), depth=_count(state_dict, 'blocks'))
    convs = _count(state_dict, 'patch_embed.convs')
    return dict(arch, patch_size=2**convs) if convs else arch


def _embed_dims(state_dict: StateDict, blocks: str) -> int:
    norm = state_dict.get(f'{blocks}.0.norm1.weight')
    return 0 if norm is None else norm.numel()


def _count(names: Iterable[str], container: str) -> int:
    start = container + '.'
    return len({name[len(start):].split('.')[0] for name in names if name.startswith(start)})


def _agree(found, built) -> bool:
    """Stages that are not built may be anything."""
    return found[:len(built)] == built[:len(found)] if isinstance(found, list) else found == built


def _resize(theirs: Tensor, ours: Tensor, mode: str) -> Tuple[Tensor, str]:
    """Resizes a position embedding of square grids; '' if it is not of this kind, or has other channels."""
    if theirs.dim() != 3:
        return theirs, ''
    (extra, grid), (own_extra, own_grid) = _grid(theirs), _grid(ours)
    if extra is None or extra != own_extra or theirs.shape[::2] != ours.shape[::2]:
        return theirs, ''
    return resize_pos_embed(theirs, (grid, grid), (own_grid, own_grid), mode), f'{grid}×{grid} → {own_grid}×{own_grid}'


def _grid(pos_embed: Tensor) -> Tuple[Optional[int], int]:
    """Tokens in front of the grid, and the side of the grid, of an embedding of shape (1, extra + side², C)."""
    tokens = pos_embed.size(1)
    return next(((extra, isqrt(tokens - extra)) for extra in (0, 1) if isqrt(tokens - extra)**2 == tokens - extra),
                (None, 0))


def _summary(names: Iterable[str]) -> str:
    """Names by their first part, or first two where the second is a number, with how many there are of each."""
    counts: Dict[str, int] = Counter()
    for name in names:
        parts = name.split('.')
        counts['.'.join(parts[:2] if parts[1:] and parts[1].isdigit() else parts[:1])] += 1
    return ', '.join(f'{part} ({count})' for part, count in counts.items()) or 'none'
