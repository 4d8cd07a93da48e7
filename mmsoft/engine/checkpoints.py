"""Writes checkpoints as complete files, only with finite weights, and finds the latest of them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import torch
from mmengine.dist import all_reduce
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from mmsoft.registry import HOOKS
from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write

BACKEND = 'mmsoft.whole_files'
PLAIN = (str, bytes, int, float, bool, type(None), Tensor, nn.Parameter, torch.device, torch.dtype)
REMEDY = 'use --resume with clip_grad or without --amp, or load_from the last checkpoint at a lower learning rate'


@register_backend(BACKEND)
class WholeFiles(LocalBackend):
    """Backend for local files, which appear under their names once complete; outdated files are removed after that.

    mmengine removes the oldest checkpoint before it writes the newest; if only one is kept, there is none in between.
    mmengine builds a backend per file, so the list ``outdated`` of files to remove belongs to one hook of one run.
    """

    def __init__(self, outdated: list[str]) -> None:
        self.outdated = outdated

    def put(self, obj: bytes, filepath: Union[str, Path]) -> None:
        """Writes a file, as a whole or not at all."""
        with atomic_write(filepath) as file:
            file.write(obj)
        while self.outdated:
            if (path := Path(self.outdated.pop())) != Path(filepath):
                path.unlink(missing_ok=True)

    def remove(self, filepath: Union[str, Path]) -> None:
        """Marks a file for removal after the next one is written."""
        self.outdated.append(str(filepath))


def latest_checkpoint(work_dir: Union[str, Path]) -> Optional[str]:
    """The checkpoint of a work directory with the highest number in its name; None if there is none.

    ``last_checkpoint``, written after each checkpoint, gives the prefix of names and CheckpointHook's ``out_dir``.
    Files older than the one named there are of an earlier training. If no name has a number, it is the named one.
    """
    work_dir, record = Path(work_dir), Path(work_dir, 'last_checkpoint')
    last = Path(record.read_text().strip() if record.is_file() else '')
    prefix = last.stem.rstrip('0123456789') if last.name else None  # such as 'epoch_'
    folders = [work_dir] if last.parent == Path('.') else [work_dir, last.parent]
    if last.parent.name == work_dir.absolute().name and not (work_dir / last.name).is_file():
        folders.reverse()  # in its out_dir, CheckpointHook makes a folder named like work_dir
    for folder in folders:
        since = (folder / last.name).stat().st_mtime if (folder / last.name).is_file() else 0
        paths = [path for path in folder.glob('*.pth') if path.exists() and path.stat().st_mtime >= since]
        named = [(re.fullmatch(r'(?!best_)(.*?)(\d+)', path.stem), path) for path in paths]
        if found := [(match[1] == prefix, int(match[2]), str(path)) for match, path in named if match]:
            return max(found)[2]
    return next((str(one / last.name) for one in folders if (one / last.name).is_file()), None)  # without a number


def plain(value: Any) -> Any:
    """Converts a value to types that ``torch.load(weights_only=True)`` reads; any other object becomes a string."""
    if isinstance(value, Mapping):
        return {plain(key): plain(one) for key, one in value.items()}
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, (tuple, list, set, frozenset)):
        return (tuple if isinstance(value, tuple) else list)(map(plain, value))
    return value if type(value) in PLAIN else str(value)


@HOOKS.register_module()
class WholeCheckpointsHook(Hook):
    """Makes mmengine's ``CheckpointHook`` write complete files or none, and remove old ones only afterwards.

    Checkpoints in remote storage, and ones whose ``backend_args`` are set, are left to their backends.
    """

    priority = 'VERY_HIGH'

    def before_run(self, runner: Runner) -> None:
        """Chooses the backend."""
        for hook in [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]:
            own = hook.backend_args or hook.file_client_args or '://' in str(hook.out_dir or runner.work_dir)
            if not own and not hasattr(runner, 'strategy'):  # FlexibleRunner saves by its strategy, without a backend
                hook.backend_args = dict(backend=BACKEND, outdated=[])

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Removes logged values, and converts others that ``torch.load(weights_only=True)`` would not read."""
        hub = checkpoint['message_hub']
        hub.update(log_scalars={}, runtime_info=plain(hub['runtime_info']))
        hub['resumed_keys'] = {key: value for key, value in hub['resumed_keys'].items() if key in hub['runtime_info']}
        checkpoint['meta'] = plain(checkpoint['meta'])

    def after_val_epoch(self, runner: Runner, metrics: Optional[dict[str, float]] = None) -> None:
        """Raises UsageError if ``save_best`` is none of the scores, where ``CheckpointHook`` would raise a KeyError."""
        for hook in runner.hooks if metrics else ():
            if missing := [one for one in getattr(hook, 'key_indicators', None) or () if one not in ('auto', *metrics)]:
                choice = f'the scores are {", ".join(metrics)}; --resume continues from the last checkpoint'
                raise UsageError(f'There is no score {missing[0]} for save_best: {choice}.')


@HOOKS.register_module()
class FiniteTrainingHook(Hook):
    """Stops training at the first loss that is NaN or infinite, and never saves weights that are."""

    priority = 'HIGH'

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """Checks the loss, which mmengine's ``RuntimeInfoHook`` has already fetched from the device.

        Raises UsageError in all processes if it is not finite in one; the message names the loss, iteration and images.
        """
        losses = {name: torch.as_tensor(value) for name, value in (outputs or {}).items() if 'loss' in name}
        wrong_anywhere = torch.tensor(not losses.get('loss', torch.zeros(())).isfinite().all(), dtype=torch.int32)
        all_reduce(wrong_anywhere, 'max')
        if wrong_anywhere:
            wrong = [f'{name} is {value.item()}' for name, value in losses.items() if not value.isfinite().all()]
            samples = data_batch.get('data_samples') if isinstance(data_batch, dict) else None
            branches = samples.values() if isinstance(samples, dict) else [samples or ()]
            images = [str(getattr(sample, 'img_path', '?')) for branch in branches for sample in branch]
            where = f'on {", ".join(images)}' if wrong else 'in another process'
            what = ', '.join(wrong) or 'The loss is not finite'
            raise UsageError(f'{what} in iteration {runner.iter + 1}, {where}; {REMEDY}.')

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Checks the weights; UsageError if some are not finite."""
        for name, value in checkpoint['state_dict'].items():  # not all are tensors: see Module.get_extra_state
            parts = [one.tensor for one in value.local_shards()] if hasattr(value, 'local_shards') else [value]  # FSDP
            if any(isinstance(one, Tensor) and one.is_floating_point() and not one.isfinite().all() for one in parts):
                when = f'after iteration {runner.iter + 1}, so no checkpoint is written'
                raise UsageError(f'{name} contains NaN or infinity {when}; {REMEDY}.')
