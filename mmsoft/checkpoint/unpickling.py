"""torch.load for files of strangers: tensors, and nothing that could run or fill the memory.

A file is looked through before torch sees it: its container, and then its pickle, in a dry run that makes nothing.
"""
import argparse
import io
import pickle
import pickletools
import re
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, Dict, Iterator, Optional

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import _weights_only_unpickler

from .errors import CheckpointError

_OPERATIONS = {name for name, value in vars(_weights_only_unpickler).items()
               if isinstance(value, bytes) and len(value) == 1}
"""The opcodes of torch's own restricted unpickler, which are those that torch.save writes."""
_MOST_OPERATIONS = 5_000_000
_COPIES = 16
"""How often the tensors of a file may show the same numbers: tied weights do, and so does a bomb."""


class _StandIn:
    """Takes whatever an object is made of, and runs none of its code."""

    def __new__(cls, *args, **kwargs):
        made = super().__new__(cls)
        made.args = args
        return made

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        self.state = state


class _Nothing(_StandIn):
    """What the dry run makes: fits everywhere, and keeps nothing."""

    def __setstate__(self, state):
        pass

    def __setitem__(self, key, value):
        pass

    append = extend = __setstate__


def _encode(text: str, encoding: str = 'latin1') -> bytes:
    """How bytes are written in pickles of protocol 2; ``codecs.encode`` has codecs besides that."""
    return text.encode('latin1')


_encode.__module__, _encode.__name__ = '_codecs', 'encode'

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

_ALLOWED: Dict[str, Any] = {
    path: type(path.rpartition('.')[2], (_StandIn, ), {'__module__': path.rpartition('.')[0]})
    for path in _TRAINING_STATE
}
_ALLOWED['argparse.Namespace'] = argparse.Namespace
_REFUSED = re.compile(r'builtins\.bytearray|torch\._utils\._rebuild_(?!tensor|parameter).*')
"""Bytes in the number that a file asks for, and tensors that are no weights: sparse, quantised, nested, on no device."""


def load_weights(file: Path) -> Any:
    """``torch.load(file, map_location='cpu', weights_only=True)`` that also reads trainers' files.

    ``argparse.Namespace`` is made. mmengine's history of logged scalars, numpy's arrays and numbers are made anew from
    what the file says of them, so that neither numpy's pickling nor ``getattr`` is called. Before torch 2.5, where
    ``weights_only=True`` cannot be told of further classes, an unpickler does the same with the same list of names.

    Args:
        file (Path): A file that ``torch.save`` wrote.

    Returns:
        object: What the file holds, in no more memory than :data:`_COPIES` times the size of the file.

    Raises:
        pickle.UnpicklingError: If the file holds anything else than tensors, containers, numbers and the above.
        CheckpointError: If it is an archive of TorchScript, which torch before 2.6 would run (CVE-2025-32434), or
            claims to hold more than it does.
    """
    with file.open('rb') as stream:
        archive = stream.read(4) == b'PK\x03\x04'
        stream.seek(0)
        if archive:
            _look_through_archive(file)
        elif tarfile.is_tarfile(str(file)):
            raise pickle.UnpicklingError('torch unpacks these without checks')
        else:
            for _ in range(5):  # a magic number, a version, the machine, the content, and the order of the storages
                _look_through(stream)
    if hasattr(torch.serialization, 'safe_globals'):
        known = torch.serialization.get_safe_globals()
        with torch.serialization.safe_globals([cls for cls in _ALLOWED.values() if cls not in known]):
            checkpoint = torch.load(file, map_location='cpu', weights_only=True)
    else:
        checkpoint = torch.load(file, map_location='cpu', pickle_module=_restricted_pickle)
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in _settle(checkpoint))
    if claimed > _COPIES * file.stat().st_size:
        raise CheckpointError(f'{file} is damaged, or made to fill the memory: its tensors claim {claimed:,} bytes, '
                              'far more than the file has; get it again from a place that you trust.')
    return checkpoint


def _look_through_archive(file: Path) -> None:
    reader = torch._C.PyTorchFileReader(str(file))  # what torch.load itself reads with
    records = reader.get_all_records()
    if any(record == 'constants.pkl' or record.startswith('code/') for record in records):
        raise CheckpointError(f'{file} holds a TorchScript program, which could run code when it is loaded, so it is '
                              'not read; save the state dict of the model alone.')
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    sizes = {entry.filename.partition('/')[2]: entry.file_size for entry in entries}
    if any(entry.compress_type for entry in entries) or sum(sizes.values()) > file.stat().st_size:
        raise CheckpointError(f'{file} is packed, which no checkpoint is, and could fill the memory when it is '
                              'unpacked, so it is not read; save it with torch.save.')
    if sorted(records) != sorted(sizes) or len(sizes) < len(entries):
        raise zipfile.BadZipFile('two readers see two contents')
    _look_through(io.BytesIO(reader.get_record('data.pkl')), sizes)


def _look_through(stream: BinaryIO, sizes: Optional[Dict[str, int]] = None) -> None:
    """Goes through one pickle, from where the stream stands to its end, as torch will, without making anything."""
    start = stream.tell()
    for count, (operation, argument, _) in enumerate(pickletools.genops(stream)):
        too_many = count > _MOST_OPERATIONS or operation.name.endswith('PUT') and argument > _MOST_OPERATIONS
        if operation.name not in _OPERATIONS or too_many:
            raise pickle.UnpicklingError(f'Unsupported operand {operation.name}')
    end = stream.tell()
    stream.seek(start)
    _DryRun(stream, sizes).load()
    stream.seek(end)


def _find_class(module: str, name: str) -> Any:
    path = f'{module}.{name}'.replace('__builtin__.', 'builtins.')
    allowed = {**_weights_only_unpickler._get_allowed_globals(), **_ALLOWED, '_codecs.encode': _encode}
    if path not in allowed or _REFUSED.fullmatch(path):
        raise pickle.UnpicklingError(f'Unsupported class {path}')
    return allowed[path]


class _DryRun(pickle._Unpickler):  # in Python: the one in C reserves memory as a file demands

    def __init__(self, stream: BinaryIO, sizes: Optional[Dict[str, int]]) -> None:
        super().__init__(stream, encoding='latin1')
        self.sizes = sizes

    def find_class(self, module: str, name: str) -> type:
        _find_class(module, name)
        return type(name, (_Nothing, ), {'path': f'{module}.{name}'})

    def persistent_load(self, pid: Any) -> _Nothing:
        """torch before 2.8 takes the length of a storage from the pickle, and reads past the end of the record."""
        kind, storage, key, _, length = pid[:5]
        if self.sizes is not None:
            name = storage.path.rpartition('.')[2]
            item = 1 if name == 'UntypedStorage' else torch.empty(0, dtype=torch.serialization.StorageType(name).dtype).element_size()
            if not 0 <= length * item <= self.sizes[f'data/{key}']:
                raise pickle.UnpicklingError('a storage is longer than its record')
        return _Nothing()


class _RestrictedUnpickler(pickle.Unpickler):

    def find_class(self, module: str, name: str) -> Any:
        return _find_class(module, name)


def _restricted_load(file, **kwargs):
    return _RestrictedUnpickler(file, **kwargs).load()


_restricted_pickle = SimpleNamespace(__name__='restricted', Unpickler=_RestrictedUnpickler, load=_restricted_load)


def _settle(content: Any) -> Iterator[torch.Tensor]:
    """Puts objects in the place of their stand-ins, in dicts and lists, and yields all tensors on the way."""
    seen, left = set(), [content]
    while left:
        node = left.pop()
        if isinstance(node, torch.Tensor):
            yield node
        if not isinstance(node, (dict, list, tuple, argparse.Namespace)) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, OrderedDict):  # a pickle can give it attributes, methods among them
            metadata = vars(node).get('_metadata')
            vars(node).clear()
            if isinstance(metadata, dict) and all(isinstance(one, dict) for one in metadata.values()):
                node._metadata = metadata
        node = vars(node) if isinstance(node, argparse.Namespace) else node
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if isinstance(value, _StandIn) and not isinstance(node, tuple):
                node[key] = _restored(value)
            left.append(value)


def _restored(made: _StandIn) -> Any:
    """The object of a stand-in, None for what is beside the point."""
    kind = type(made).__name__
    if kind == 'HistoryBuffer':
        state = made.state
        return HistoryBuffer(_restored(state['_log_history']), _restored(state['_count_history']), state['max_length'])
    if kind == 'scalar':
        return np.frombuffer(made.args[1], _dtype(made.args[0]))[0]
    if kind == '_reconstruct':
        _, shape, dtype, by_columns, raw = made.state
        return np.frombuffer(raw, _dtype(dtype)).reshape(shape, order='F' if by_columns else 'C').copy()
    return None


def _dtype(made: _StandIn) -> np.dtype:
    name = made.args[0]
    if not re.fullmatch('[biuf][1248]', name):
        raise pickle.UnpicklingError('Unsupported class numpy.dtype of objects')
    return np.dtype(name).newbyteorder(made.state[1])
