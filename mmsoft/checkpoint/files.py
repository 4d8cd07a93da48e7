"""Files: reading a checkpoint safely, choosing its state dict, and writing one without losing another."""
import hashlib
import pickle
import re
from pathlib import Path
from typing import Tuple, Union
from urllib.parse import urlparse

import safetensors.torch
import torch
from mmengine.dist import barrier, is_main_process

from mmsoft.utils.files import atomic_write
from .errors import CheckpointError
from .names import StateDict
from .unpickling import load_weights

# The evaluated weights first. timm's trainer, which SOFT used, evaluates the average of the weights; DeiT's, which
# SimA used, keeps one in `model_ema` but evaluates `model`. mmengine swaps the average into `state_dict` itself.
ENTRIES = ('state_dict_ema', 'state_dict', 'model', 'model_ema')


def read_checkpoint(filename: Union[str, Path]) -> dict:
    """Reads a checkpoint, running nothing that it may hold.

    Args:
        filename (str or Path): A file of ``torch.save``, a ``.safetensors`` file, or an http(s) address of one.

    Returns:
        dict: What the file holds, tensors on the CPU.

    Raises:
        CheckpointError: If the file does not exist, is empty, cut off, no checkpoint, or holds other objects than
            tensors, numbers, containers, an ``argparse.Namespace`` and what mmengine saves.
    """
    path = _download(filename) if re.match('https?://', str(filename)) else Path(filename).expanduser()
    if not path.is_file():
        raise CheckpointError(f'{filename} is not a file; check the path of the checkpoint.')
    if not path.stat().st_size:
        raise CheckpointError(f'{filename} is empty; copy or download it again.')
    try:
        checkpoint = safetensors.torch.load_file(path) if path.suffix == '.safetensors' else load_weights(path)
    except CheckpointError:
        raise
    except MemoryError:
        raise CheckpointError(f'{filename} needs more memory than there is.') from None
    except PermissionError:
        raise CheckpointError(f'{filename} may not be read; change its permissions.') from None
    except Exception as error:  # what torch raises for a damaged file depends on where the damage is
        raise CheckpointError(_explain(filename, path, error)) from error
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f'{filename} holds a {type(checkpoint).__name__} where a checkpoint holds a dict of '
                              'tensors; save the state dict of the model.')
    return checkpoint


def select_state_dict(checkpoint: dict, filename: Union[str, Path] = 'the checkpoint') -> Tuple[StateDict, str]:
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
        if isinstance(tensor, torch.Tensor) and isinstance(name, str)
    }
    if not state_dict:
        raise CheckpointError(f'{filename} holds no weights, neither under {", ".join(ENTRIES)} nor by themselves; '
                              'check that it is the checkpoint of a model.')
    for name, tensor in state_dict.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise CheckpointError(f'{filename} holds NaN or infinity in {name}; use a checkpoint from before the '
                                  'training diverged.')
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
    state_dict = {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in state_dict.items()}
    try:
        with atomic_write(filename) as file:
            if Path(filename).suffix == '.safetensors':
                file.write(safetensors.torch.save(state_dict, metadata={'format': 'pt'}))
            else:
                torch.save({entry: state_dict}, file)
    except OSError as error:
        raise CheckpointError(f'{filename} cannot be written ({error.strerror}); give another place.') from error


def _explain(filename: Union[str, Path], path: Path, error: Exception) -> str:
    smuggled = re.search(r'(?:GLOBAL|class) ([\w.]+)', str(error))
    if smuggled and isinstance(error, pickle.UnpicklingError):
        return (f'{filename} holds a Python object ({smuggled[1]}) that could run code when it is loaded, so it is not '
                'read; save the state dict of the model alone.')
    with path.open('rb') as file:
        is_torch = file.read(2) in (b'PK', b'\x80\x02') or path.suffix == '.safetensors'
    if is_torch:
        return f'{filename} is damaged or cut off; copy or download it again.'
    return f'{filename} is not a checkpoint of torch or safetensors; check that it is the right file.'


def _download(url: str) -> Path:
    """Downloads into torch's cache; files of one name at several addresses are kept apart."""
    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    path = Path(torch.hub.get_dir()) / 'checkpoints' / f'{digest}-{Path(urlparse(url).path).name}'
    path.parent.mkdir(parents=True, exist_ok=True)
    for my_turn in (is_main_process(), True):  # the second turn is for machines that do not share the cache
        if my_turn and not path.exists():
            try:
                torch.hub.download_url_to_file(url, str(path))
            except OSError as error:
                raise CheckpointError(f'{url} cannot be downloaded ({error}); check address and network.') from error
        barrier()
    return path
