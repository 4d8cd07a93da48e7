"""Loading: a checkpoint into a backbone, or into a host's classifier."""
import re
from typing import Optional

from mmengine.logging import print_log
from torch import nn

from .errors import CheckpointError
from .families import to_mmsoft
from .files import read_checkpoint, select_state_dict
from .fitting import fit
from .names import BACKBONE


def load_pretrained(backbone: nn.Module, filename: str, prefix: Optional[str] = None) -> None:
    """Loads a published checkpoint, one of ours or one of mmengine's into a backbone, and logs what became of it.

    Args:
        backbone (BaseBackbone): The backbone, which is changed.
        filename (str): A file or an http(s) address; what it may be is told by :func:`read_checkpoint`.
        prefix (str, optional): Start of the names to load, of a backbone inside a larger model. Defaults to None:
            ``backbone.`` where there are such names.

    Raises:
        CheckpointError: If the file cannot be used for this backbone, see :func:`read_checkpoint`,
            :func:`select_state_dict` and :func:`fit`.
    """
    state_dict, entry = select_state_dict(read_checkpoint(filename), filename)
    if prefix:
        prefix = prefix.rstrip('.') + '.'
        state_dict = {name[len(prefix):]: tensor for name, tensor in state_dict.items() if name.startswith(prefix)}
        if not state_dict:
            raise CheckpointError(f'{filename} has no names that start with {prefix}; leave prefix out to find the '
                                  'backbone by itself.')
    family, state_dict = to_mmsoft(state_dict)
    source = f'{filename} ({entry})' if entry else str(filename)
    fitting, report = fit(backbone, _without_prefix(state_dict), source, family)
    backbone.load_state_dict(fitting, strict=False)
    print_log(report, logger='current')


def check_model(model: nn.Module, filename: str, whole: bool = True, checkpoint: Optional[dict] = None) -> None:
    """Checks that a checkpoint is a model's: the hosts only warn when it is not, and go on from random weights.

    Args:
        model (nn.Module): The model, as a host builds it; it may be wrapped.
        filename (str): A checkpoint of it; of a classifier, under published names too.
        whole (bool): Whether all of the model has to be in it, or a part is enough.
        checkpoint (dict, optional): What the file holds, where it has been read already.

    Raises:
        CheckpointError: If it is not, or cannot be used at all, see :func:`read_checkpoint`, :func:`select_state_dict`.
    """
    loaded, _ = select_state_dict(read_checkpoint(filename) if checkpoint is None else checkpoint, filename)
    own = {re.sub(r'^(module\.)+', '', name): tensor for name, tensor in model.state_dict().items()}
    if not set(own) & set(loaded):
        _, loaded = to_mmsoft(loaded)
    fitting = {name for name, tensor in own.items() if name in loaded
               and tensor.is_floating_point() == loaded[name].is_floating_point()
               and (tensor.shape == loaded[name].shape or name.endswith('pos_embed'))}
    if not fitting:
        raise CheckpointError(f'{filename} does not fit the config: no tensor in it has a name and a shape of the model; '
                              'check that it is the right file.')
    for name in own:
        if whole and name not in fitting:
            found = f'of {loaded[name].dtype} and shape {tuple(loaded[name].shape)}' if name in loaded else 'missing'
            raise CheckpointError(f'{filename} does not fit the config: {name} is {found} there and of shape '
                                  f'{tuple(own[name].shape)} in the model; training leaves a config that fits in its '
                                  'work dir.')


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
    if family is None and all(name in own or name.startswith('head.') for name in _without_prefix(whole)):
        return  # a part of the classifier
    named = {name: tensor for name, tensor in whole.items() if name.startswith(BACKBONE)}
    fitting, report = fit(backbone, _without_prefix(named), entry or 'the checkpoint', family)
    whole.update((BACKBONE + name, tensor) for name, tensor in fitting.items())
    if not set(whole) <= set(state_dict):
        state_dict.clear()
        print_log(report, logger='current')
    state_dict.update(whole)


def _without_prefix(state_dict: dict) -> dict:
    return {name[len(BACKBONE):] if name.startswith(BACKBONE) else name: t for name, t in state_dict.items()}
