"""Published names and ours, safe reading, and loading; :mod:`.safe_loading` is for what mmengine reads by itself."""

from .io import CheckpointError, read_checkpoint, select_state_dict
from .load import check_model, convert_checkpoint, convert_classifier_checkpoint, load_pretrained
from .names import FAMILIES, to_mmsoft

__all__ = [
    'FAMILIES',
    'CheckpointError',
    'check_model',
    'convert_checkpoint',
    'convert_classifier_checkpoint',
    'load_pretrained',
    'read_checkpoint',
    'select_state_dict',
    'to_mmsoft',
]
