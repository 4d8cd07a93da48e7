"""Published names and ours, safe reading, and loading; :mod:`.safe_loading` is for what mmengine reads by itself."""

from .io import CheckpointError, read_checkpoint, select_state_dict
from .load import convert_checkpoint, load_pretrained

__all__ = ['CheckpointError', 'convert_checkpoint', 'load_pretrained', 'read_checkpoint', 'select_state_dict']
