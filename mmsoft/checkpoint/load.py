"""Loads checkpoints into backbones, mmpretrain's classifiers and mmengine, and converts them to our names."""

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable
from math import isqrt
from pathlib import Path
from typing import Any, Optional, Union

import safetensors.torch
import torch
from mmengine.logging import print_log
from mmengine.runner.checkpoint import CheckpointLoader, load_from_http, load_from_local
from torch import Tensor, nn

from mmsoft.layers.maps import resize_pos_embed
from mmsoft.utils.files import atomic_write

from .io import WRAPPERS, CheckpointError, StateDict, find_weights, read_checkpoint, select_state_dict
from .names import BACKBONE, FAMILIES, SOFT, Family, find_family, to_mmsoft, without_prefix


def load_pretrained(backbone: nn.Module, filename: str, prefix: Optional[str] = None) -> None:
    """Loads a published checkpoint, one of ours or one of mmengine's into a backbone, and logs what was loaded.

    ``filename`` is that of :func:`read_checkpoint`. ``prefix`` is the start of the names to load from a larger model,
    by default ``backbone.`` if any name has it. CheckpointError if the file does not fit this backbone.
    """
    state_dict, entry = select_state_dict(read_checkpoint(filename), filename)
    noted = state_dict._metadata
    prefix = f'{prefix.rstrip(".")}.' if prefix else ''
    state_dict = {name[len(prefix) :]: tensor for name, tensor in state_dict.items() if name.startswith(prefix)}
    if not state_dict:
        raise CheckpointError(f'{filename} has no names that start with {prefix}; leave prefix out.')
    family, ours = to_mmsoft(state_dict)
    fitting = fit(backbone, without_prefix(ours), f'{filename} ({entry})' if entry else str(filename), family)
    attentions = [name for name in noted if name.startswith(prefix) and name.endswith('.attn')]
    fitting._metadata = without_prefix({name[len(prefix) :]: noted[name] for name in attentions})
    backbone.load_state_dict(fitting, strict=False)


def check_model(model: nn.Module, filename: str, whole: bool = True) -> None:
    """Raises CheckpointError if a checkpoint does not fit a model, which may be wrapped; OpenMMLab only warns.

    Checkpoints of classifiers may have published names, others need the model's. Unless ``whole``, a part is enough.
    """
    loaded, _ = select_state_dict(read_checkpoint(filename, peek=True), filename)
    bare = getattr(model, 'module', model)
    if type(bare)._load_from_state_dict is not nn.Module._load_from_state_dict:  # mmdet's teachers rename tensors
        bare._load_from_state_dict(loaded, '', {}, False, [], [], [])
    own = {re.sub(WRAPPERS, '', name): tensor for name, tensor in model.state_dict().items()}
    if bare._load_state_dict_pre_hooks:  # of mmpretrain's classifiers, which translate names as they load
        loaded = loaded if set(own) & set(loaded) else to_mmsoft(loaded)[1]
    elif not whole and set(own) & (set(to_mmsoft(loaded)[1]) - set(loaded)):
        raise CheckpointError(f'{filename} has names of a backbone: give it as model.backbone.init_cfg.checkpoint.')
    differing = [name for name, one in own.items() if name not in loaded or not _fits(loaded[name], one, name)]
    if differing and (whole or len(differing) == len(own)):
        what = f'{len(differing)} of the {len(own)} tensors of the model are missing there, or of another shape'
        remedy = f'{differing[0]} first; training leaves a config that fits in its work dir'
        raise CheckpointError(f'{filename} does not fit the config: {what}, {remedy}.')


def convert_classifier_checkpoint(backbone: nn.Module, state_dict: dict) -> None:
    """Converts a state dict, or a whole published checkpoint, in place to that of a classifier with this backbone.

    A state dict that our classifier saved stays as it is. CheckpointError if it is of another backbone or size.
    """
    own = backbone.state_dict()
    adapted = any(f'{BACKBONE}module.{name}' in state_dict for name in own if '.lora_' in name)  # LoRA wraps it
    if adapted or not state_dict or any(BACKBONE in name and not name.startswith(BACKBONE) for name in state_dict):
        return  # or the classifier is a part of another model, which has saved it
    chosen, entry = select_state_dict(state_dict)
    family, whole = to_mmsoft(chosen)
    if family is None and all(name in own or name.startswith('head.') for name in without_prefix(whole)):
        return  # a part of the classifier
    named = {name[len(BACKBONE) :]: tensor for name, tensor in whole.items() if name.startswith(BACKBONE)}
    translated = not set(whole) <= set(state_dict)
    fitting = fit(backbone, named, entry or 'the checkpoint', family, log=translated)
    if translated:
        state_dict.clear()
        state_dict.update({**whole, **{BACKBONE + name: tensor for name, tensor in fitting.items()}})


def use_safe_loading(on: bool = True) -> None:
    """Makes mmengine read files and addresses with :func:`load_from_weights_only`; ``on=False`` restores its own."""
    for schemes, own in (('', load_from_local), (('http://', 'https://'), load_from_http)):
        CheckpointLoader.register_scheme(schemes, load_from_weights_only if on else own, force=True)


def load_from_weights_only(filename: str, map_location: Any = None) -> dict:
    """:func:`read_checkpoint` without ``meta['config']``, which mmengine would run when it resumes.

    Weights of other entries or ``.safetensors`` become ``state_dict``, which mmengine reads; ours, the evaluated ones.
    """
    checkpoint = read_checkpoint(filename, map_location or 'cpu')  # None would mean the device in the file
    chosen, entry = find_weights(checkpoint)
    family, is_published = find_family(re.sub(r'^(module\.|backbone\.)*', '', str(name)) for name in chosen)
    is_training = entry == 'state_dict' and not (family is SOFT and is_published)  # which may resume
    if (family and not is_training) or re.search(r'\.safetensors(\?|$)', str(filename).lower()):
        return dict(state_dict=select_state_dict(checkpoint, filename)[0])
    weights = checkpoint.get('state_dict', chosen)
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise CheckpointError(f'{filename} holds no weights by their names; save the state dict of a model.')
    if (entry and 'state_dict' not in checkpoint) or any(re.search(WRAPPERS, name) for name in weights):
        checkpoint['state_dict'], _ = select_state_dict(weights, filename)
    if isinstance(checkpoint.get('meta'), dict):
        checkpoint['meta'].pop('config', None)
    return checkpoint


def convert_checkpoint(source: Union[str, Path], target: Union[str, Path], force: bool = False) -> str:
    """Writes the weights of a checkpoint, including the head, unchanged under our names; returns a summary.

    ``source`` is a published checkpoint, ours or mmengine's. ``target`` is a file of safetensors if it ends with
    ``.safetensors``, else of ``torch.save``. CheckpointError if it exists, unless ``force``, or ``source`` is unusable.
    """
    if Path(target).is_file() and not force:
        raise CheckpointError(f'{target} exists already; choose another name, or replace it with --force.')
    state_dict, entry = select_state_dict(read_checkpoint(source), source)
    family, ours = to_mmsoft(state_dict)
    if family is None:
        raise CheckpointError(f'{source} holds another network, nothing in it matches SOFT or SimA; use one of theirs.')
    tensors = {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in ours.items()}
    with atomic_write(target) as file:
        if Path(target).suffix.lower() == '.safetensors':
            file.write(safetensors.torch.save(tensors, dict(format='pt')))
        else:
            torch.save(dict(state_dict=tensors), file)
    return f'{target}: {len(ours)} tensors of {family.name} from {entry or "the state dict"} of {source}'


def fit(backbone: nn.Module, state_dict: StateDict, file: str, family: Optional[Family], log: bool = True) -> StateDict:
    """Chooses the tensors that a backbone has, and resizes position embeddings of another grid in float32.

    ``family`` is that of the tensors, None if the network is not ours; ``file`` is for messages. CheckpointError if the
    tensors belong to another network, to another size of this one, or have other shapes.
    """
    model, own = type(backbone).__name__, backbone.state_dict()
    if family is None or family.name != backbone.published:
        kind = f'a network of the family {family.name}' if family else 'another network'
        raise CheckpointError(f'{file} holds {kind}, nothing in it matches {model}; use a checkpoint of {model}.')
    depths, built, arch = _depths(state_dict), _depths(own), backbone.arch
    expected = arch['depths'] if 'depths' in arch else [arch['depth']]
    if any(depths.get(i, depth) not in (depth, expected[i]) for i, depth in built.items()):
        has = f'has {list(depths.values())} blocks where the backbone has {expected}'
        raise CheckpointError(f'{file} {has}; give it the depth of the file, arch=dict(...).')
    fitting = OrderedDict((name, state_dict[name]) for name in own if name in state_dict)
    resized = []
    for name, tensor in fitting.items():
        fitting[name], grids = fit_position(name, tensor, own[name], family.name)
        resized += [f'{name} {grids}'] if grids else []
        if not _fits(fitting[name], own[name]):
            theirs, ours = (f'of shape {tuple(t.shape)} in {t.dtype}' for t in (tensor, own[name]))
            what = 'build the backbone with the arguments that the file was made with'
            raise CheckpointError(f'{file} has {name} {theirs} where the backbone has it {ours}; {what}.')
    if log:
        missing = [name for name in own if name not in fitting and not name.endswith('num_batches_tracked')]
        loaded = f'{file}: loaded {len(fitting)} of the {len(own)} tensors of {model}'
        others = f'left out: {_summary(name for name in state_dict if name not in own)}; missing: {_summary(missing)}'
        print_log(f'{loaded}; resized: {", ".join(resized) or "none"}; {others}', logger='current')
    return fitting


def _depths(names: Iterable[str]) -> dict[int, int]:
    """The number of blocks in each stage; a network without stages counts as one stage."""
    found = (re.match(r'(?:stages\.(\d+)\.)?blocks\.(\d+)\.', name) for name in names)
    blocks = {(int(match[1] or 0), match[2]) for match in found if match}
    return dict(sorted(Counter(stage for stage, _ in blocks).items()))


def _fits(theirs: Tensor, ours: Tensor, name: str = '') -> bool:
    any_grid = name.split('.')[-1] == 'pos_embed'
    theirs_shape, ours_shape = (t.shape[::2] if any_grid else t.shape for t in (theirs, ours))  # without n of (1, n, C)
    return theirs.is_floating_point() == ours.is_floating_point() and theirs_shape == ours_shape


def fit_position(name: str, theirs: Tensor, ours: Tensor, family: str) -> tuple[Tensor, str]:
    """Resizes a position embedding (1, extra + side², C) as its family does, and says how; '' if it is unchanged."""
    is_kind = name.split('.')[-1] == 'pos_embed' and theirs.dim() == 3 and theirs.shape[::2] == ours.shape[::2]
    if not is_kind or theirs.shape == ours.shape:
        return theirs, ''
    side, own_side = isqrt(theirs.size(1)), isqrt(ours.size(1))
    extra, own_extra = theirs.size(1) - side**2, ours.size(1) - own_side**2
    if (extra, own_extra) == (2, 1):  # DeiT's distillation token, behind the class token
        theirs, extra = torch.cat([theirs[:, :1], theirs[:, 2:]], dim=1), 1
    if extra != own_extra:
        return theirs, ''
    resized = resize_pos_embed(theirs, (side, side), (own_side, own_side), FAMILIES[family].resize)
    return resized, f'{side}×{side} → {own_side}×{own_side}'


def _summary(names: Iterable[str]) -> str:
    """Counts of names by stage, by first part, or as XCiT's temperature."""
    counts = Counter(re.sub(r'.*(attn\.temperature)|((?:stages\.\d+|[^.]*)).*', r'\1\2', name) for name in names)
    return ', '.join(f'{part} ({count})' for part, count in counts.items()) or 'none'
