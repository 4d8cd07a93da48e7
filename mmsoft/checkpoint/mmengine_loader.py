"""Safe reading of what mmengine loads by itself: ``load_from``, ``resume``, inferencers, ``get_model``."""

import re
from typing import Any

from mmengine.runner.checkpoint import CheckpointLoader, load_from_http, load_from_local

from .io import ENTRIES, CheckpointError, read_checkpoint, select_state_dict
from .names import SOFT


def use_safe_loading(on: bool = True) -> None:
    """Makes mmengine read files and addresses with :func:`load_from_weights_only` in this process, or as before."""
    for schemes, own in (('', load_from_local), (('http://', 'https://'), load_from_http)):
        CheckpointLoader.register_scheme(schemes, load_from_weights_only if on else own, force=True)


def load_from_weights_only(filename: str, map_location: Any = None) -> dict:
    """:func:`read_checkpoint` without ``meta['config']``, which mmengine would run when it resumes.

    Of published SOFT files and of ``.safetensors`` files, the evaluated weights are returned as ``state_dict``.
    """
    checkpoint = read_checkpoint(filename, map_location)
    chosen = next((checkpoint[key] for key in ENTRIES if isinstance(checkpoint.get(key), dict)), checkpoint)
    names = {re.sub(r'^(module\.|backbone\.)*', '', str(name)) for name in chosen}
    if str(filename).endswith('.safetensors') or names >= set(SOFT.signature):
        return dict(state_dict=select_state_dict(checkpoint, filename)[0])
    weights = checkpoint.get('state_dict', checkpoint)
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise CheckpointError(f'{filename} holds no weights by their names; save the state dict of a model.')
    if any('_orig_mod.' in name for name in weights):  # of a compiled model
        checkpoint['state_dict'], _ = select_state_dict(weights, filename)
    if isinstance(checkpoint.get('meta'), dict):
        checkpoint['meta'].pop('config', None)
    return checkpoint
