from . import host_loader  # noqa: F401
from .convert import convert_checkpoint
from .errors import CheckpointError
from .families import FAMILIES, to_mmsoft, to_published
from .files import read_checkpoint, select_state_dict, write_checkpoint
from .loading import check_model, convert_classifier_checkpoint, load_pretrained

__all__ = [
    'CheckpointError', 'FAMILIES', 'check_model', 'convert_checkpoint', 'convert_classifier_checkpoint', 'load_pretrained',
    'read_checkpoint', 'select_state_dict', 'to_mmsoft', 'to_published', 'write_checkpoint'
]
