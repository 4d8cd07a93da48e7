"""Names of published tensors and ours, safe reading, and loading; :mod:`.safe_loading` is for mmengine's own reads."""

from .io import CheckpointError, read_checkpoint, select_state_dict
from .load import convert_checkpoint, load_pretrained

__all__ = ['CheckpointError', 'convert_checkpoint', 'load_pretrained', 'read_checkpoint', 'select_state_dict']
