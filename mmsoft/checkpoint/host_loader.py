"""What mmengine reads by itself: ``load_from``, tools/test.py CONFIG CHECKPOINT, ``mmpretrain.get_model``."""
from pathlib import Path

from mmengine.runner.checkpoint import CheckpointLoader

from .files import read_checkpoint, select_state_dict
from .soft import SOFT

_load_from_local = CheckpointLoader._get_checkpoint_loader('')
# torch.save puts the names before the weights.
_NAMES_WITHIN = 2**24


@CheckpointLoader.register_scheme(prefixes='', force=True)
def load_from_local(filename: str, map_location=None) -> dict:
    """mmengine's loader of local files, which does not know ``state_dict_ema`` and ``.safetensors``.

    Published SOFT files, told by names that no other network has, and ``.safetensors`` files are read by
    :func:`read_checkpoint`. Every other file goes to the loader that was there before, untouched.

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
    return _load_from_local(filename, map_location)


def _is_published_soft(path: Path) -> bool:
    with path.open('rb') as file:
        start = file.read(_NAMES_WITHIN)
    return all(name.encode() in start for name in SOFT.signature)
