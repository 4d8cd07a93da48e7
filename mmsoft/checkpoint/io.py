"""Reading a checkpoint without running anything in it, choosing its weights, and writing one without losing another."""

import argparse
import hashlib
import pickle
import re
import tarfile
import zipfile
from collections import OrderedDict
from functools import cache
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, Union
from urllib.parse import urlparse

import numpy as np
import safetensors.torch
import torch
from filelock import FileLock
from mmengine.logging import HistoryBuffer
from torch import Tensor

from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write

StateDict = dict[str, Tensor]
# The evaluated weights first. timm's trainer, which SOFT used, evaluates the average of the weights; DeiT's, which
# SimA used, keeps one in `model_ema` but evaluates `model`. mmengine swaps the average into `state_dict` itself.
ENTRIES = ('state_dict_ema', 'state_dict', 'model', 'model_ema')

_reading = Lock()  # torch's list of safe classes is one for all threads


class CheckpointError(UsageError):
    """A checkpoint cannot be used; the message says in one sentence why, and what to do about it."""


def read_checkpoint(filename: Union[str, Path], map_location: Any = 'cpu', peek: bool = False) -> dict:
    """Reads a checkpoint, running nothing that it may hold: ``torch.load(weights_only=True)`` for trainers' files, too.

    Args:
        filename (str or Path): A file of ``torch.save``, a ``.safetensors`` file, or an http(s) address of one.
        map_location: See :func:`torch.load`.
        peek (bool): Maps the file into memory where it can, for checks that do not need all of it.

    Returns:
        dict: What the file holds. ``_metadata`` of a state dict is kept, and is a dict of dicts.

    Raises:
        CheckpointError: If the file does not exist, is damaged, no checkpoint, claims to hold more than it does, or
            holds other objects than dense tensors, numbers, containers, an ``argparse.Namespace``, NumPy's arrays and
            numbers, and mmengine's history of logged values.
    """
    path = _download(filename) if re.match('https?://', str(filename)) else Path(filename).expanduser()
    if not path.is_file():
        raise CheckpointError(f'{filename} is not a file; check the path of the checkpoint.')
    try:
        if path.suffix == '.safetensors':
            device = map_location if isinstance(map_location, (str, torch.device)) else 'cpu'
            checkpoint = safetensors.torch.load_file(path, device)
        else:
            checkpoint = _read_torch(path, map_location, peek)
        _check_content(checkpoint, path.stat().st_size)
    except Exception as error:  # what torch raises for a damaged file depends on where the damage is
        raise CheckpointError(f'{filename} {_explain(error)}') from error
    return checkpoint


def select_state_dict(checkpoint: dict, filename: Union[str, Path] = 'the checkpoint') -> tuple[StateDict, str]:
    """Chooses the evaluated weights of a checkpoint: the first of :data:`ENTRIES`, or the dict itself.

    Args:
        checkpoint (dict): What :func:`read_checkpoint` returns.
        filename (str or Path): Name of the checkpoint in messages.

    Returns:
        tuple[dict[str, Tensor], str]: The tensors, ``module.`` in front of their names removed, and the entry that
        they come from, ``''`` for the dict itself.

    Raises:
        CheckpointError: If there is no tensor, or one that holds NaN or infinity.
    """
    entry = next((key for key in ENTRIES if isinstance(checkpoint.get(key), dict) and checkpoint[key]), '')
    state_dict = {
        re.sub(r'^(module\.)+', '', name): tensor
        for name, tensor in (checkpoint[entry] if entry else checkpoint).items()
        if isinstance(tensor, Tensor) and isinstance(name, str)
    }
    if not state_dict:
        raise CheckpointError(
            f'{filename} holds no weights, neither under {", ".join(ENTRIES)} nor by themselves; '
            'check that it is the checkpoint of a model.'
        )
    for name, tensor in state_dict.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise CheckpointError(
                f'{filename} holds NaN or infinity in {name}; use a checkpoint from before the training diverged.'
            )
    return state_dict, entry


def write_checkpoint(state_dict: StateDict, filename: Union[str, Path], entry: str = 'state_dict') -> None:
    """Writes tensors to a file that is there as a whole or not at all.

    Args:
        state_dict (dict[str, Tensor]): Tensors to write.
        filename (str or Path): A name that ends in ``.safetensors`` chooses that format, any other ``torch.save``.
        entry (str): Key of the state dict in a file of ``torch.save``.

    Raises:
        CheckpointError: If the file cannot be written.
    """
    tensors = {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in state_dict.items()}
    try:
        with atomic_write(filename) as file:
            if Path(filename).suffix == '.safetensors':
                file.write(safetensors.torch.save(tensors, dict(format='pt')))
            else:
                torch.save({entry: tensors}, file)
    except OSError as error:
        raise CheckpointError(f'{filename} cannot be written ({error.strerror}); give another place.') from error


def _read_torch(path: Path, map_location: Any, peek: bool) -> Any:
    with path.open('rb') as file:
        is_zip = file.read(4) == b'PK\x03\x04'
    if _is_unsafe_archive(path, is_zip):
        raise CheckpointError(
            'holds a TorchScript program, is compressed or a tar archive, which could run code or '
            'fill the memory when it is loaded, so it is not read; save the state dict of the model.'
        )
    options = dict(map_location=map_location, **(dict(mmap=True) if peek and is_zip else {}))
    safe = _safe_globals()
    statistics = dict(HistoryBuffer()._statistics_methods)  # of the class, and a file can change it
    with _reading:
        try:
            if not hasattr(torch.serialization, 'safe_globals'):  # before torch 2.5
                return torch.load(str(path), pickle_module=_restricted_pickle(safe), **options)
            known = torch.serialization.get_safe_globals()
            with torch.serialization.safe_globals([one for one in safe.values() if one not in known]):
                return torch.load(str(path), weights_only=True, **options)
        finally:
            HistoryBuffer._statistics_methods.clear()
            HistoryBuffer._statistics_methods.update(statistics)


def _is_unsafe_archive(path: Path, is_zip: bool) -> bool:
    """Whether torch before 2.6 would run the file (CVE-2025-32434), or unpack it without checks."""
    if not is_zip:
        return tarfile.is_tarfile(path)
    with torch.serialization._open_zipfile_reader(str(path)) as reader, zipfile.ZipFile(path) as archive:
        return torch.serialization._is_torchscript_zip(reader) or any(
            entry.compress_type for entry in archive.infolist()
        )


def _check_content(content: Any, size: int) -> None:
    """Refuses tensors that are no weights or larger than the file, and removes what a pickle gave an OrderedDict.

    torch before 2.8 takes the length of a storage from the pickle, and would read past the end of the record.
    """
    if not isinstance(content, dict):
        raise CheckpointError(
            f'holds a {type(content).__name__} where a checkpoint holds a dict of tensors; save the '
            'state dict of the model.'
        )
    seen, claimed, left = set(), {}, [content]
    while left:
        node = left.pop()
        if isinstance(node, Tensor):
            if node.layout is not torch.strided or node.is_meta or node.is_quantized or node.is_nested:
                raise CheckpointError(
                    'holds a tensor that is sparse, quantized, nested or on no device; save dense weights.'
                )
            storage = node.untyped_storage()
            claim = max(storage.nbytes(), node.numel() * node.element_size())  # an expanded tensor claims more
            claimed[storage.data_ptr()] = max(claim, claimed.get(storage.data_ptr(), 0))
        elif isinstance(node, (dict, list, tuple)) and id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, OrderedDict):  # a pickle can give it attributes, in place of methods too
                metadata = vars(node).get('_metadata')
                vars(node).clear()
                if isinstance(metadata, dict) and all(isinstance(one, dict) for one in metadata.values()):
                    node._metadata = metadata
            left += list(node.values()) if isinstance(node, dict) else node
    if sum(claimed.values()) > size:
        raise CheckpointError(
            'is damaged, or made to fill the memory: its tensors claim more bytes than the file has; '
            'get it again from a place that you trust.'
        )


@cache
def _safe_globals() -> dict[str, Any]:
    """By the names in a pickle, what trainers save beside weights.

    Under both names of NumPy's module, whichever is installed, and without ``getattr``, by which a pickle refers to the
    methods of mmengine's history, and could reach anything.
    """

    def renamed(path: str, call: Any) -> type:
        module, _, name = path.rpartition('.')
        return type(name, (), dict(__module__=module, __new__=lambda cls, *args: call(*args)))

    numbers = [type(np.dtype(kind)) for kind in '?bBhHiIlLqQefd']
    classes = [argparse.Namespace, HistoryBuffer, np.ndarray, np.dtype, *numbers]
    functions = {'builtins.getattr': lambda owner, name: HistoryBuffer._statistics_methods.get(name)}
    for core in ('numpy.core', 'numpy._core'):
        functions[f'{core}.multiarray._reconstruct'] = np.empty(0).__reduce__()[0]
        functions[f'{core}.multiarray.scalar'] = np.float64().__reduce__()[0]
    return {
        **{f'{one.__module__}.{one.__qualname__}': one for one in classes},
        **{path: renamed(path, call) for path, call in functions.items()},
    }


def _restricted_pickle(safe: dict[str, Any]) -> SimpleNamespace:
    """Python's pickle for names in torch's list and in ours alone (docs.python.org, "Restricting Globals")."""
    from torch._weights_only_unpickler import _get_allowed_globals

    allowed = {**_get_allowed_globals(), **safe}

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            path = f'{module}.{name}'.replace('__builtin__.', 'builtins.')
            if path not in allowed:
                raise pickle.UnpicklingError(f'Unsupported class {path}')
            return allowed[path]

    return SimpleNamespace(
        __name__='restricted', Unpickler=Unpickler, load=lambda file, **kw: Unpickler(file, **kw).load()
    )


def _explain(error: Exception) -> str:
    refused = re.search(r"(?:GLOBAL|class) '?([\w.]+)", str(error))
    if isinstance(error, CheckpointError):
        return str(error)
    if isinstance(error, (MemoryError, PermissionError)):
        return f'cannot be read ({getattr(error, "strerror", "it needs more memory than there is")}).'
    if refused and isinstance(error, pickle.UnpicklingError):
        return (
            f'holds a Python object ({refused[1]}) that could run code when it is loaded, so it is not read; save '
            'the state dict of the model alone.'
        )
    return (
        'is empty, damaged or cut off, or not a checkpoint of torch or safetensors; check that it is the right '
        'file, and get it again.'
    )


def _download(url: str) -> Path:
    """Downloads into torch's cache, once for all processes; addresses with the same file name are kept apart."""
    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    path = Path(torch.hub.get_dir()) / 'checkpoints' / f'{digest}-{Path(urlparse(url).path).name}'
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f'{path}.lock'):
        if not path.exists():
            try:
                torch.hub.download_url_to_file(url, str(path))  # which renames it once it is whole
            except OSError as error:
                raise CheckpointError(f'{url} cannot be downloaded ({error}); check address and network.') from error
    return path
