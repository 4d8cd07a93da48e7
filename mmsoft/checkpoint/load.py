"""A checkpoint into a backbone, into mmpretrain's classifier, or into a file under the other set of names."""

import logging
import operator
import re
from collections import Counter
from collections.abc import Iterable
from math import isqrt
from pathlib import Path
from typing import Any, Optional, Union

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from mmsoft.layers import resize_pos_embed

from .io import CheckpointError, StateDict, read_checkpoint, select_state_dict, write_checkpoint
from .names import BACKBONE, Family, published_family, to_mmsoft, to_published, without_prefix


def load_pretrained(backbone: nn.Module, filename: str, prefix: Optional[str] = None) -> None:
    """Loads a published checkpoint, one of ours or one of mmengine's into a backbone, and logs what became of it.

    Args:
        backbone (BaseBackbone): The backbone, which is changed.
        filename (str): A file or an http(s) address, see :func:`read_checkpoint`.
        prefix (str, optional): Start of the names to load, of a backbone inside a larger model. Defaults to None:
            ``backbone.`` where there are such names.

    Raises:
        CheckpointError: If the file cannot be used for this backbone.
    """
    checkpoint = read_checkpoint(filename)
    state_dict, entry = select_state_dict(checkpoint, filename)
    if prefix:
        prefix = prefix.rstrip('.') + '.'
        state_dict = {name[len(prefix) :]: tensor for name, tensor in state_dict.items() if name.startswith(prefix)}
        if not state_dict:
            raise CheckpointError(
                f'{filename} has no names that start with {prefix}; leave prefix out to find the backbone by itself.'
            )
    family, ours = to_mmsoft(state_dict)
    fitting = fit(backbone, without_prefix(ours), f'{filename} ({entry})' if entry else str(filename), family)
    backbone.load_state_dict(fitting, strict=False)
    warn_of_other_attention(backbone, _trained_attention(backbone, checkpoint, entry, state_dict))


def check_model(model: nn.Module, filename: str, whole: bool = True, checkpoint: Optional[dict] = None) -> None:
    """Checks that a checkpoint is a model's: OpenMMLab libraries only warn when it is not, and use random weights.

    Args:
        model (nn.Module): The model, as an OpenMMLab library builds it; it may be wrapped.
        filename (str): A checkpoint of it; of a classifier, under published names too.
        whole (bool): Whether all of the model has to be in it, or a part is enough.
        checkpoint (dict, optional): What the file holds, where it has been read already.

    Raises:
        CheckpointError: If it is not, or cannot be used at all.
    """
    loaded, _ = select_state_dict(checkpoint or read_checkpoint(filename, peek=True), filename)
    own = {re.sub(r'^(module\.)+', '', name): tensor for name, tensor in model.state_dict().items()}
    if not set(own) & set(loaded):
        _, loaded = to_mmsoft(loaded)
    differing = [
        name
        for name, tensor in own.items()
        if name not in loaded or not (_fits(loaded[name], tensor) or name.endswith('pos_embed'))
    ]
    if len(differing) == len(own):
        raise CheckpointError(
            f'{filename} does not fit the config: no tensor in it has a name and a shape of the '
            'model; check that it is the right file.'
        )
    if differing and whole:
        raise CheckpointError(
            f'{filename} does not fit the config: {differing[0]} is missing there, or of another '
            f'shape than {tuple(own[differing[0]].shape)}; training leaves a config that fits in its '
            'work dir.'
        )


def convert_classifier_checkpoint(backbone: nn.Module, state_dict: dict) -> None:
    """Turns a state dict into the one of mmpretrain's ``ImageClassifier`` around a backbone, head included.

    Called by the hook that the classifier runs before it loads a state dict. What a classifier of ours has saved stays
    as it is, but for position embeddings of another grid.

    Args:
        backbone (BaseBackbone): The classifier's backbone.
        state_dict (dict): A state dict of the classifier, or all of a published checkpoint, changed in place.

    Raises:
        CheckpointError: If nothing in the state dict matches the classifier's backbone, or not its size.
    """
    if any(BACKBONE in name and not name.startswith(BACKBONE) for name in state_dict) or not state_dict:
        return  # the classifier is a part of another model, which has saved it
    chosen, entry = select_state_dict(state_dict)
    family, whole = to_mmsoft(chosen)
    own = backbone.state_dict()
    if family is None and all(name in own or name.startswith('head.') for name in without_prefix(whole)):
        return  # a part of the classifier
    named = {name: tensor for name, tensor in whole.items() if name.startswith(BACKBONE)}
    translated = not set(whole) <= set(state_dict)
    fitting = fit(backbone, without_prefix(named), entry or 'the checkpoint', family, log=translated)
    whole.update((BACKBONE + name, tensor) for name, tensor in fitting.items())
    if translated:
        warn_of_other_attention(backbone, _trained_attention(backbone, state_dict, entry, chosen))
        state_dict.clear()
    state_dict.update(whole)


def convert_checkpoint(
    source: Union[str, Path], target: Union[str, Path], to: str = 'mmsoft', force: bool = False
) -> str:
    """Writes the weights of a checkpoint, head included, under our names or the published ones, bit by bit.

    Args:
        source (str or Path): A published checkpoint, one of ours or one of mmengine's.
        target (str or Path): File to write; ``.safetensors`` chooses that format, any other name ``torch.save``.
        to (str): ``'mmsoft'`` or ``'published'``.
        force (bool): Replace ``target`` if it exists.

    Returns:
        str: A sentence about what was written.

    Raises:
        CheckpointError: If ``source`` cannot be used, or ``target`` cannot be written or must not be replaced.
    """
    if Path(target).is_file() and not force:
        raise CheckpointError(f'{target} exists already; choose another name, or replace it with --force.')
    state_dict, entry = select_state_dict(read_checkpoint(source), source)
    family, converted = (to_mmsoft if to == 'mmsoft' else to_published)(state_dict)
    if family is None:
        raise CheckpointError(f'{source} holds another network, nothing in it matches SOFT or SimA; use one of theirs.')
    write_checkpoint(converted, target, 'state_dict' if to == 'mmsoft' else family.entry)
    names = 'our' if to == 'mmsoft' else 'published'
    return (
        f'{target}: {len(converted)} tensors of {family.name} under {names} names, from '
        f'{entry or "the state dict"} of {source}'
    )


def fit(
    backbone: nn.Module, state_dict: StateDict, filename: str, family: Optional[Family], log: bool = True
) -> StateDict:
    """Chooses the tensors that a backbone has, and resizes position embeddings of another grid in float32.

    Args:
        backbone (BaseBackbone): The backbone, as built.
        state_dict (dict[str, Tensor]): Tensors by the backbone's names.
        filename (str): Where they come from, for messages.
        family (Family, optional): The family that they belong to, None for a network that is not ours.
        log (bool): Whether to log what is loaded, resized, left out and missing.

    Returns:
        dict[str, Tensor]: What the backbone can load.

    Raises:
        CheckpointError: If the tensors belong to another network, to another size of this one, or have other shapes.
    """
    network = type(backbone).__name__
    if family is None or family.name != backbone.published:
        kind = f'a network of the family {family.name}' if family else 'another network'
        raise CheckpointError(
            f'{filename} holds {kind}, nothing in it matches {network}; use a checkpoint of {network}.'
        )
    _check_arch(backbone, state_dict, filename)
    own = backbone.state_dict()
    fitting, resized = {name: state_dict[name] for name in own if name in state_dict}, []
    for name, tensor in fitting.items():
        if tensor.shape != own[name].shape and name.endswith('pos_embed'):
            fitting[name], grids = _resize(tensor, own[name], family.resize)
            resized += [f'{name} {grids}'] if grids else []
        if not _fits(fitting[name], own[name]):
            theirs, ours = (f'of shape {tuple(t.shape)} in {t.dtype}' for t in (tensor, own[name]))
            raise CheckpointError(
                f'{filename} has {name} {theirs} where the backbone has it {ours}; build the '
                'backbone with the arguments that the file was made with.'
            )
    if log:
        missing = [name for name in own if name not in fitting and not name.endswith('num_batches_tracked')]
        left_out = [name for name in state_dict if name not in own]
        print_log(
            f'{filename}: loaded {len(fitting)} of the {len(own)} tensors of {network}; resized: '
            f'{", ".join(resized) or "none"}; left out: {_summary(left_out)}; missing: '
            f'{_summary(missing)}',
            logger='current',
        )
    return fitting


def note_attention(backbone: nn.Module, state_dict: dict, prefix: str, local_metadata: dict) -> None:
    """State dict hook of a backbone: notes in ``_metadata``, which torch and mmengine save, what it attends with.

    Tensors do not tell: SOFT and SOFT-Norm, or DeiT's softmax and SimA, have the same names and shapes.
    """
    local_metadata['attention'] = _attention(backbone)


def warn_of_other_attention(backbone: nn.Module, trained: Any) -> None:
    """Logs a warning if weights were trained with another attention than a backbone's.

    Args:
        backbone (nn.Module): The backbone.
        trained (dict[str, str]): What :func:`note_attention` has noted; anything else says nothing.
    """
    trained = trained if isinstance(trained, dict) else {}
    differing = [
        (str(trained[name]), own) for name, own in _attention(backbone).items() if trained.get(name, own) != own
    ]
    if differing:
        theirs, ours = (' and '.join(dict.fromkeys(kinds)) for kinds in zip(*differing))
        print_log(
            f'The checkpoint was trained with {theirs} and is loaded into {ours}: a start for training, no result yet.',
            logger='current',
            level=logging.WARNING,
        )


def _attention(backbone: nn.Module) -> dict[str, str]:
    return {name: module.kind for name, module in backbone.named_modules() if hasattr(module, 'kind')}


def _trained_attention(backbone: nn.Module, checkpoint: dict, entry: str, names: Iterable[str]) -> dict[str, str]:
    """What a checkpoint notes; of a published one, what its names and the ``arch`` of timm's trainer tell."""
    metadata = getattr(checkpoint[entry] if entry else checkpoint, '_metadata', {})
    noted = [one['attention'] for one in metadata.values() if 'attention' in one]
    names = without_prefix(dict.fromkeys(names))
    family = published_family(names)
    if noted or family is None:
        return noted[0] if noted else {}
    kind = family.attention
    if kind == 'XCA' and 'blocks.0.attn.temperature' not in names:  # SimA's, which has XCiT's other names
        return {}
    arch = str(checkpoint.get('arch') or getattr(checkpoint.get('args'), 'model', '')).lower()
    if family.name == 'soft' and arch.startswith('soft'):
        kind = f'SOFTAttention(norm={"norm" in arch})'
    return {next(iter(_attention(backbone))): kind} if kind else {}


def _check_arch(backbone: nn.Module, state_dict: StateDict, filename: str) -> None:
    """Compares the sizes of the stages that are in the file and in the backbone."""
    found, built, arch = _read_arch(state_dict), _read_arch(backbone.state_dict()), backbone.arch
    if not set(found) <= set(built):
        raise CheckpointError(
            f'{filename} lacks tensors that tell the size of its network; it is damaged, get it again.'
        )

    def as_list(sizes: Union[int, list[int]]) -> list[int]:
        return sizes if isinstance(sizes, list) else [sizes]

    # Stages that are not built, or not in the file, may be anything.
    differing = [
        name
        for name in found
        if found[name] != arch[name] and any(map(operator.ne, as_list(found[name]), as_list(built[name])))
    ]
    if differing:
        differences = ' and '.join(f'{name} {found[name]} where the backbone has {arch[name]}' for name in differing)
        named = [repr(name) for name, sizes in backbone.arch_settings.items() if found.items() <= sizes.items()]
        known = next(iter(backbone.arch_settings.values()))
        entries = ', '.join(f'{name}={found.get(name, arch[name])}' for name in known)
        advised = (named or [f'dict({entries})'])[0]
        raise CheckpointError(f'{filename} has {differences}; write arch={advised} to use it.')


def _read_arch(state_dict: StateDict) -> dict[str, Union[int, list[int]]]:
    """What a state dict tells of ``arch``: embed_dims and depths, or depth and patch_size."""
    blocks = re.findall(r'^(?:stages\.(\d+)\.)?blocks\.(\d+)\.', '\n'.join(state_dict), re.M)
    stages = sorted({stage for stage, _ in blocks})
    first = [state_dict.get(f'{stage and f"stages.{stage}."}blocks.0.norm1.weight') for stage in stages]
    if not blocks or any(norm is None for norm in first):
        return dict(lost=True)
    dims = [norm.numel() for norm in first]
    depths = [len({block for of, block in blocks if of == stage}) for stage in stages]
    if stages != ['']:
        return dict(embed_dims=dims, depths=depths)
    convs = len({name.split('.')[2] for name in state_dict if name.startswith('patch_embed.convs.')})
    return dict(embed_dims=dims[0], depth=depths[0], **({'patch_size': 2**convs} if convs else {}))


def _fits(theirs: Tensor, ours: Tensor) -> bool:
    return theirs.is_floating_point() == ours.is_floating_point() and theirs.shape == ours.shape


def _resize(theirs: Tensor, ours: Tensor, mode: str) -> tuple[Tensor, str]:
    """Resizes a position embedding (1, extra + side², C); '' if it is not of this kind, or has other channels."""
    if theirs.dim() != 3 or theirs.shape[::2] != ours.shape[::2]:
        return theirs, ''
    side, own_side = isqrt(theirs.size(1)), isqrt(ours.size(1))
    extra, own_extra = theirs.size(1) - side**2, ours.size(1) - own_side**2
    if (extra, own_extra) == (2, 1):  # DeiT's distillation token, behind the class token
        theirs, extra = torch.cat([theirs[:, :1], theirs[:, 2:]], dim=1), 1
    if extra != own_extra:
        return theirs, ''
    return resize_pos_embed(theirs, (side, side), (own_side, own_side), mode), f'{side}×{side} → {own_side}×{own_side}'


def _summary(names: Iterable[str]) -> str:
    """Names by their first part, or two where the second is a number, or XCiT's temperature, with their numbers."""
    start = re.compile(r'.*(attn\.temperature)|([^.]+(?:\.\d+)?)')
    counts = Counter(match[1] or match[2] for match in map(start.match, names) if match)
    return ', '.join(f'{part} ({count})' for part, count in counts.items()) or 'none'
