"""What mmengine reads by itself: ``load_from``, ``resume``, the hosts' inferencers, ``mmpretrain.get_model``."""
import logging
from pathlib import Path

from mmengine.logging import print_log
from mmengine.runner.checkpoint import CheckpointLoader
from mmengine.runner.checkpoint import load_from_local as load_as_ever

from .errors import CheckpointError
from .files import ENTRIES, read_checkpoint, select_state_dict
from .soft import SOFT


@CheckpointLoader.register_scheme(prefixes=('', 'http://', 'https://'), force=True)
def load_from_local(filename: str, map_location=None) -> dict:
    """mmengine's loader of files and addresses, which runs what it finds in them.

    mmengine calls ``torch.load`` without ``weights_only``, and runs ``meta['config']`` as a config when it resumes; this
    one reads with :func:`read_checkpoint`, and leaves that entry out. mmengine knows ``state_dict`` alone, where SOFT's
    authors evaluate ``state_dict_ema``, which no hook of a model gets to see, and no ``.safetensors``.

    Args:
        filename (str): A file or an http(s) address.
        map_location: Taken for mmengine's sake; whoever loads the tensors moves them.

    Returns:
        dict: What the file holds, on the CPU; of published SOFT files, told by names that no other network has, and of
        ``.safetensors`` files, the evaluated weights as ``state_dict``.

    Raises:
        CheckpointError: If the file is damaged or holds other objects.
    """
    if '://' not in filename and not Path(filename).expanduser().is_file():
        return load_as_ever(filename, map_location)  # which says so
    checkpoint = read_checkpoint(filename)
    if filename.endswith('.safetensors') or _is_published_soft(checkpoint):
        return dict(state_dict=select_state_dict(checkpoint, filename)[0])
    weights = checkpoint.get('state_dict', checkpoint)
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise CheckpointError(f'{filename} holds no weights by their names; check that it is the checkpoint of a model.')
    try:
        select_state_dict(checkpoint, filename)
    except CheckpointError as error:  # another's network may have its reasons
        print_log(str(error), logger='current', level=logging.WARNING)
    if isinstance(checkpoint.get('meta'), dict):
        checkpoint['meta'].pop('config', None)
    return checkpoint


def _is_published_soft(checkpoint: dict) -> bool:
    entries = [checkpoint, *map(checkpoint.get, ENTRIES)]
    return any(isinstance(entry, dict) and all(f'{prefix}{name}' in entry for name in SOFT.signature)
               for entry in entries for prefix in ('', 'module.', 'backbone.'))
