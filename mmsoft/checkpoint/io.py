"""Reading a checkpoint without running anything in it, and choosing its weights."""

import argparse
import codecs
import hashlib
import pickle
import re
import tarfile
import zipfile
from collections import OrderedDict
from functools import cache, partial
from http.client import HTTPException
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, Union
from urllib.parse import urlparse

import numpy as np
import safetensors.torch
import torch
from filelock import FileLock
from torch import Tensor

from mmsoft.utils import UsageError

StateDict = dict[str, Tensor]
# The evaluated weights first. timm's trainer, which SOFT used, evaluates the average of the weights; DeiT's, which SimA
# used, keeps an average in `model_ema` but evaluates `model`. mmengine swaps the average into `state_dict` itself.
ENTRIES = ('state_dict_ema', 'state_dict', 'model', 'model_ema')
WRAPPERS = r'^((module|_orig_mod|_\w+_wrapped_module)\.)+|(?<=\.)_(orig_mod|\w+_wrapped_module)\.'  # in tensor names

_reading = Lock()  # all threads share torch's list of safe classes


class CheckpointError(UsageError):
    """A checkpoint cannot be used; the message says why, and what to do about it."""


def read_checkpoint(filename: Union[str, Path], map_location: Any = 'cpu', peek: bool = False) -> dict:
    """Reads a checkpoint, also of a training, by ``torch.load(weights_only=True)``, which runs no code in it.

    ``filename`` is a file of ``torch.save`` or a ``.safetensors`` file, an http(s) address of one, or
    ``hf://owner/name/file`` in the Hugging Face Hub. ``map_location`` is that of :func:`torch.load`; ``peek`` maps the
    file into memory if possible, for checks. Returns its content, with ``_metadata``, a dict of dicts, but without
    mmengine's logged values. CheckpointError if it does not exist, is damaged, no checkpoint or claims more than it
    holds, or has other objects than dense tensors, numbers, containers, ``argparse.Namespace`` and NumPy's arrays.
    """
    is_address = re.match('(https?|hf)://', str(filename))
    path = _download(str(filename)) if is_address else Path(filename).expanduser()
    if not path.is_file():
        places = 'training leaves checkpoints in its work directory, docs/pretrained_weights.md names published ones'
        raise CheckpointError(f'{filename} is not a file: {places}, and tools/train.py --from-scratch does without.')
    device = map_location if isinstance(map_location, (str, torch.device)) else 'cpu'
    torch.empty(0, device=device)  # raises errors of the device, not of the file
    try:
        is_safe = path.suffix.lower() == '.safetensors'
        checkpoint = safetensors.torch.load_file(path, device) if is_safe else _read_torch(path, map_location, peek)
        _check_content(checkpoint, path.stat().st_size)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # what torch raises for a damaged file depends on where the damage is
        reason, is_damaged = _explain(error)
        if is_address and is_damaged:  # a download may end early without an error
            path.resolve().unlink(missing_ok=True)  # the Hub's folder has a link, and would link to the same file again
        raise CheckpointError(f'{filename} {reason}') from error
    return checkpoint


def find_weights(checkpoint: dict) -> tuple[dict, str]:
    """The evaluated weights of a checkpoint, the first of :data:`ENTRIES` or the dict itself, and their entry or ''."""
    entry = next((key for key in ENTRIES if isinstance(checkpoint.get(key), dict) and checkpoint[key]), '')
    return checkpoint[entry] if entry else checkpoint, entry


def select_state_dict(checkpoint: dict, filename: Union[str, Path] = 'the checkpoint') -> tuple[StateDict, str]:
    """The tensors that :func:`find_weights` chooses, without wrappers' prefixes in their names, and their entry.

    ``filename`` is for messages; ``_metadata`` stays. CheckpointError if there is no tensor, or NaN or infinity in one.
    """
    source, entry = find_weights(checkpoint)
    bare = partial(re.sub, WRAPPERS, '')
    state_dict = OrderedDict((bare(k), one) for k, one in source.items() if isinstance(k, str) and torch.is_tensor(one))
    state_dict._metadata = {bare(name): one for name, one in getattr(source, '_metadata', {}).items()}  # Attention.kind
    if not state_dict:
        where = f'neither under {", ".join(ENTRIES)} nor by themselves; check that it is the checkpoint of a model'
        raise CheckpointError(f'{filename} holds no weights, {where}.')
    for name, tensor in state_dict.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise CheckpointError(f'{filename} holds NaN or infinity in {name}; use an earlier checkpoint.')
    return state_dict, entry


def _read_torch(path: Path, map_location: Any, peek: bool) -> Any:
    with path.open('rb') as file:
        is_zip = file.read(4) == b'PK\x03\x04'
    # torch before 2.6 would run programs (CVE-2025-32434), and unpack compressed and tar archives without checks.
    unsafe = not is_zip and tarfile.is_tarfile(path)
    if is_zip:
        with torch.serialization._open_zipfile_reader(str(path)) as reader, zipfile.ZipFile(path) as archive:
            compressed = any(entry.compress_type for entry in archive.infolist())
            unsafe = compressed or torch.serialization._is_torchscript_zip(reader)
    if unsafe:
        what = 'a TorchScript program, is compressed or a tar archive, which could run code or fill the memory'
        raise CheckpointError(f'holds {what} when it is loaded, so it is not read; save the state dict of the model.')
    options = dict(map_location=map_location, **(dict(mmap=True) if peek and is_zip else {}))
    if not hasattr(torch.serialization, 'safe_globals'):  # before torch 2.5
        return torch.load(str(path), pickle_module=_restricted_pickle(), **options)
    with _reading:
        known = torch.serialization.get_safe_globals()
        with torch.serialization.safe_globals([one for one in _safe_globals().values() if one not in known]):
            return torch.load(str(path), weights_only=True, **options)


def _check_content(content: Any, size: int) -> None:
    """Refuses tensors that are not dense or larger than the file, and attributes that a pickle gave an OrderedDict.

    torch before 2.8 takes the length of a storage from the pickle, and would read past the end of the record.
    """
    if not isinstance(content, dict):
        raise CheckpointError(f'holds a {type(content).__name__} and no dict of tensors; save a state dict.')
    seen, claimed, left = set(), {}, [content]
    while left:
        node = left.pop()
        if isinstance(node, Tensor):
            if node.layout is not torch.strided or node.is_meta or node.is_quantized or node.is_nested:
                raise CheckpointError('holds a sparse, quantized, nested or meta tensor; save dense weights.')
            storage = node.untyped_storage()
            claim = max(storage.nbytes(), node.numel() * node.element_size())  # an expanded tensor claims more
            claimed[storage.data_ptr()] = max(claim, claimed.get(storage.data_ptr(), 0))
        elif isinstance(node, (dict, list, tuple)) and id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, OrderedDict):  # a pickle can set its attributes, even in place of methods
                metadata = vars(node).get('_metadata')
                vars(node).clear()
                if isinstance(metadata, dict) and {(type(k), type(v)) for k, v in metadata.items()} <= {(str, dict)}:
                    node._metadata = metadata
            left += list(node.values()) if isinstance(node, dict) else node
    if sum(claimed.values()) > size:
        raise CheckpointError('is damaged or made to fill the memory: its tensors claim more bytes than it has.')


@cache
def _safe_globals() -> dict[str, Any]:
    """Classes that trainers save beside weights, by their names in a pickle. NumPy's module has two names.

    mmengine's history of logged values becomes an empty object; objects that a pickle gets by ``getattr`` become None.
    """

    def named(path: str, call: Any) -> type:
        module, _, name = path.rpartition('.')
        return type(name, (), dict(__module__=module, __new__=lambda cls, *args: call(*args)))

    history = type('HistoryBuffer', (), dict(__module__='mmengine.logging.history_buffer'))
    numbers = [type(np.dtype(kind)) for kind in '?bBhHiIlLqQefd']
    classes = [argparse.Namespace, history, np.ndarray, np.dtype, *numbers, named('builtins.getattr', lambda *_: None)]
    for core in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        classes.append(named(f'{core}._reconstruct', np.empty(0).__reduce__()[0]))
        classes.append(named(f'{core}.scalar', np.float64().__reduce__()[0]))
    return {f'{one.__module__}.{one.__qualname__}': one for one in classes}


def _restricted_pickle() -> SimpleNamespace:
    """Python's pickle, restricted to names in torch's list and in ours (docs.python.org, "Restricting Globals")."""
    from torch._weights_only_unpickler import _get_allowed_globals

    later = {'_codecs.encode': codecs.encode, 'builtins.bytearray': bytearray}  # in torch's list since 2.5

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            path = f'{module}.{name}'.replace('__builtin__.', 'builtins.')
            if (found := (_get_allowed_globals() | later | _safe_globals()).get(path)) is None:
                raise pickle.UnpicklingError(f'Unsupported class {path}')
            return found

    return SimpleNamespace(__name__='', Unpickler=Unpickler, load=lambda file, **kw: Unpickler(file, **kw).load())


def _explain(error: Exception) -> tuple[str, bool]:  # what is wrong, and whether the file is damaged
    refused = re.search(r"(?:GLOBAL|class) '?([\w.]+)", str(error))
    if isinstance(error, CheckpointError):
        return str(error), False
    if isinstance(error, (MemoryError, OSError)) or "can't allocate memory" in str(error):
        reason = getattr(error, 'strerror', 'it needs more memory than there is') or error  # safetensors has none
        return f'cannot be read ({reason}).', False
    if refused and isinstance(error, pickle.UnpicklingError):
        what = f'a Python object ({refused[1]}) that could run code when it is loaded'
        return f'holds {what}, so it is not read; save the state dict of the model alone.', False
    return 'is empty, damaged or cut off, or not a checkpoint of torch or safetensors; get it again.', True


def _download(url: str) -> Path:
    """Downloads into torch's cache, or the Hub's, once for all processes; files of the same name are kept apart."""
    try:
        if url.startswith('hf://'):
            from huggingface_hub import hf_hub_download

            if not (parts := re.fullmatch('hf://([^/]+/[^/]+)/(.+)', url)):
                raise CheckpointError(f'{url} is not an address of the form hf://owner/name/file.')
            return Path(hf_hub_download(*parts.groups()))
        digest = hashlib.sha256(url.encode()).hexdigest()[:8]
        path = Path(torch.hub.get_dir()) / 'checkpoints' / f'{digest}-{Path(urlparse(url).path).name}'
        if not path.exists():  # if it exists, its folder may be read-only
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f'{path}.lock'):
                if not path.exists():
                    torch.hub.download_url_to_file(url, str(path))  # which renames it once it is whole
        return path
    except ImportError as error:
        raise CheckpointError(f'{url} needs huggingface_hub, which is not installed: install it.') from error
    except (OSError, ValueError, HTTPException) as error:
        raise CheckpointError(f'{url} cannot be downloaded ({error}); check address and network.') from error
