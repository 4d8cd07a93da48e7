"""Safe reading of the checkpoints that mmengine loads by itself: ``load_from``, ``resume``, inferencers, ``get_model``.

Importing this module turns it on, so that a config can name it:
``custom_imports = dict(imports=['mmsoft.checkpoint.safe_loading'])``.
"""

from typing import Any

from mmengine.runner.checkpoint import CheckpointLoader, load_from_http, load_from_local

from .io import ENTRIES, CheckpointError, read_checkpoint, select_state_dict
from .names import SOFT


def use_safe_loading(on: bool = True) -> None:
    """Has mmengine read files and http(s) addresses with :func:`read_checkpoint`, in this process from now on.

    mmengine calls ``torch.load`` without ``weights_only``, and runs ``meta['config']`` as a config when it resumes.

    Args:
        on (bool): False brings mmengine's own loaders back.
    """
    CheckpointLoader.register_scheme('', load_safely if on else load_from_local, force=True)
    CheckpointLoader.register_scheme(('http://', 'https://'), load_safely if on else load_from_http, force=True)


def load_safely(filename: str, map_location: Any = None) -> dict:
    """mmengine's loader of files and addresses, without running anything in them.

    Args:
        filename (str): A file or an http(s) address.
        map_location: See :func:`torch.load`.

    Returns:
        dict: What the file holds, without ``meta['config']``; of published SOFT files, told by names that no other
        network has, and of ``.safetensors`` files, the evaluated weights as ``state_dict``.

    Raises:
        CheckpointError: If the file is missing, damaged, or holds objects that could run.
    """
    checkpoint = read_checkpoint(filename, map_location)
    entries = [checkpoint, *map(checkpoint.get, ENTRIES)]
    if str(filename).endswith('.safetensors') or any(
        isinstance(entry, dict) and all(prefix + name in entry for name in SOFT.signature)
        for entry in entries
        for prefix in ('', 'module.', 'backbone.')
    ):
        return dict(state_dict=select_state_dict(checkpoint, filename)[0])
    weights = checkpoint.get('state_dict', checkpoint)
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise CheckpointError(
            f'{filename} holds no weights by their names; check that it is the checkpoint of a model.'
        )
    if isinstance(checkpoint.get('meta'), dict):
        checkpoint['meta'].pop('config', None)
    return checkpoint


use_safe_loading()
