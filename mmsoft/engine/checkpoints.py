"""Checkpoints that are whole files or none, and the newest of them."""

import re
from pathlib import Path
from typing import Optional, Union

import numpy as np
import torch
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import HistoryBuffer
from mmengine.runner import Runner
from mmengine.utils import apply_to

from mmsoft.registry import HOOKS
from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write

BACKEND = 'mmsoft.whole_files'


@register_backend(BACKEND)
class WholeFiles(LocalBackend):
    """Local files that take their names once they are whole; outdated ones are removed after that.

    mmengine removes the oldest checkpoint before it writes the newest. If only one is kept, there is none in between.

    Args:
        outdated (list[str]): Files to remove then, of one hook of one run: mmengine makes a backend for each file.
    """

    def __init__(self, outdated: list[str]) -> None:
        self.outdated = outdated

    def put(self, obj: bytes, filepath: Union[str, Path]) -> None:
        """Writes a file, as a whole or not at all; UsageError if it cannot be written."""
        try:
            Path(filepath).parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(filepath) as file:
                file.write(obj)
        except OSError as error:
            raise UsageError(
                f'{filepath} cannot be written ({error.strerror or error}); earlier checkpoints are '
                'whole: make room, and continue by the same command with --resume.'
            ) from error
        while self.outdated:
            path = Path(self.outdated.pop())
            if path != Path(filepath):
                path.unlink(missing_ok=True)

    def remove(self, filepath: Union[str, Path]) -> None:
        """Has a file removed when the next one is written."""
        self.outdated.append(str(filepath))


def latest_checkpoint(work_dir: Union[str, Path]) -> Optional[str]:
    """The newest checkpoint of a training, by the number in its name; None if there is none.

    ``last_checkpoint`` only tells the prefix of the name and CheckpointHook's ``out_dir``, since it is written later.

    Args:
        work_dir: The training's work directory.
    """
    record = Path(work_dir, 'last_checkpoint')
    last = Path(record.read_text().strip() if record.is_file() else '-')
    if last.parent == Path('.') or not last.parent.is_dir():  # the run was moved, or has not saved
        last = Path(work_dir, last.name)

    def numbered(folder: Union[str, Path]) -> list[tuple[bool, int, str]]:
        named = ((re.fullmatch(r'(?!best_)(.*?)(\d+)', path.stem), path) for path in Path(folder).glob('*.pth'))
        return [(last.stem.startswith(match[1] or '-'), int(match[2]), str(path)) for match, path in named if match]

    found = numbered(work_dir) or numbered(last.parent)
    return max(found)[2] if found else None


@HOOKS.register_module()
class WholeCheckpointsHook(Hook):
    """Has mmengine's ``CheckpointHook`` write whole files or none, and remove old ones after that.

    Checkpoints in remote storage, and ones whose ``backend_args`` are set, are left to their backends.
    """

    priority = 'VERY_HIGH'

    def before_run(self, runner: Runner) -> None:
        """Chooses the backend."""
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook) and not (
                hook.backend_args or hook.file_client_args or '://' in str(hook.out_dir or runner.work_dir)
            ):
                hook.backend_args = dict(backend=BACKEND, outdated=[])

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Writes logged values as tensors and numbers, so that ``torch.load(weights_only=True)`` reads the file."""
        hub = checkpoint['message_hub']
        hub['log_scalars'] = {
            name: dict(values=[torch.from_numpy(array) for array in buffer.data], max_length=buffer.max_length)
            for name, buffer in hub['log_scalars'].items()
        }
        hub['runtime_info'] = apply_to(
            hub['runtime_info'], lambda value: isinstance(value, np.generic), lambda value: value.item()
        )

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Makes mmengine's history of these values, which it would otherwise start again."""
        for name, logged in checkpoint.get('message_hub', {}).get('log_scalars', {}).items():
            if isinstance(logged, dict):
                values = [tensor.cpu().numpy() for tensor in logged['values']]
                checkpoint['message_hub']['log_scalars'][name] = HistoryBuffer(*values, logged['max_length'])
