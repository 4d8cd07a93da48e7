"""What mmengine reads by itself: ``load_from``, tools/test.py CONFIG CHECKPOINT, ``mmpretrain.get_model``."""
from pathlib import Path

from mmengine.runner.checkpoint import CheckpointLoader
from mmengine.runner.checkpoint import load_from_local as load_as_ever

from .files import read_checkpoint, select_state_dict
from .soft import SOFT

_START = 2**24
"""Bytes in which torch.save puts the names, before the weights."""


@CheckpointLoader.register_scheme(prefixes='', force=True)
def load_from_local(filename: str, map_location=None) -> dict:
    """mmengine's loader of local files, which does not know ``state_dict_ema`` and ``.safetensors``.

    mmengine takes ``state_dict``, where SOFT's authors evaluate ``state_dict_ema``, which no hook of a model gets to
    see. Published SOFT files, told by names that no other network has, and ``.safetensors`` files are read by
    :func:`read_checkpoint`; every other file by mmengine.

    Args:
        filename (str): A local file.
        map_location: As for :func:`torch.load`.

    Returns:
        dict: What the file holds; of the files above, the evaluated weights as ``state_dict``, on the CPU.

    Raises:
        CheckpointError: If one of the files above is damaged or holds other objects.
    """
    path = Path(filename).expanduser()
    if path.is_file() and (path.suffix == '.safetensors' or _is_published_soft(path)):
        return dict(state_dict=select_state_dict(read_checkpoint(path), path)[0])
    return load_as_ever(filename, map_location)


def _is_published_soft(path: Path) -> bool:
    with path.open('rb') as file:
        start = file.read(_START)
    return all(name.encode() in start for name in SOFT.signature)
