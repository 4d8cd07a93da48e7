"""torch.load for files of strangers: tensors, and nothing that could run."""
import argparse
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Dict, Union

import torch
from torch import _weights_only_unpickler

from .errors import CheckpointError


class _Ignored:
    """Stands in for an object beside the weights: takes whatever makes the object, and does nothing with it."""

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        pass


# What mmengine keeps beside the weights: the history of the logged scalars, as numpy arrays.
_TRAINING_STATE = (
    'mmengine.logging.history_buffer.HistoryBuffer',
    'numpy.core.multiarray._reconstruct',
    'numpy.core.multiarray.scalar',
    'numpy._core.multiarray._reconstruct',
    'numpy._core.multiarray.scalar',
    'numpy.ndarray',
    'numpy.dtype',
    'builtins.getattr',
)

_ALLOWED: Dict[str, type] = {
    path: type(path.rpartition('.')[2], (_Ignored, ), {'__module__': path.rpartition('.')[0]})
    for path in _TRAINING_STATE
}
_ALLOWED['argparse.Namespace'] = argparse.Namespace


def load_weights(file: Union[str, Path]):
    """``torch.load(file, map_location='cpu', weights_only=True)`` that also reads trainers' files.

    ``argparse.Namespace`` is made; the objects of mmengine's message hub are replaced by empty ones, so that neither
    numpy nor ``getattr`` is called. Before torch 2.5, where ``weights_only=True`` cannot be told of further classes,
    an unpickler does the same with the same list of allowed names.

    Args:
        file (str or Path): A file that ``torch.save`` wrote.

    Returns:
        object: What the file holds.

    Raises:
        pickle.UnpicklingError: If the file holds anything else than tensors, containers, numbers and the above.
        CheckpointError: If it is an archive of TorchScript, which torch before 2.6 would run (CVE-2025-32434).
    """
    if _is_torchscript(file):
        raise CheckpointError(f'{file} holds a TorchScript program, which could run code when it is loaded, so it is '
                              'not read; save the state dict of the model alone.')
    if hasattr(torch.serialization, 'safe_globals'):
        known = torch.serialization.get_safe_globals()
        with torch.serialization.safe_globals([cls for cls in _ALLOWED.values() if cls not in known]):
            return torch.load(file, map_location='cpu', weights_only=True)
    return torch.load(file, map_location='cpu', pickle_module=_restricted_pickle)


def _is_torchscript(file: Union[str, Path]) -> bool:
    """Whether torch.load would hand the file to torch.jit.load: asked of the reader that it uses itself."""
    with open(file, 'rb') as start:
        if start.read(4) != b'PK\x03\x04':
            return False
    records = torch._C.PyTorchFileReader(str(file)).get_all_records()
    return any(record == 'constants.pkl' or record.startswith('code/') for record in records)


class _RestrictedUnpickler(pickle.Unpickler):

    def find_class(self, module: str, name: str):
        path = f'{module}.{name}'.replace('__builtin__.', 'builtins.')
        allowed = {**_weights_only_unpickler._get_allowed_globals(), '_codecs.encode': _Ignored, **_ALLOWED}
        if path not in allowed:
            raise pickle.UnpicklingError(f'Unsupported class {path}')
        return allowed[path]


def _restricted_load(file, **kwargs):
    return _RestrictedUnpickler(file, **kwargs).load()


_restricted_pickle = SimpleNamespace(__name__='restricted', Unpickler=_RestrictedUnpickler, load=_restricted_load)
