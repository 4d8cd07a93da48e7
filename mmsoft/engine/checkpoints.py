"""Checkpoints that are whole files or none, and the newest of them."""
import re
from pathlib import Path
from typing import List, Optional, Tuple, Union

import numpy as np
import torch
from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import HistoryBuffer, print_log
from mmengine.runner import Runner
from mmengine.utils import apply_to

from mmsoft.checkpoint import CheckpointError, read_checkpoint
from mmsoft.registry import HOOKS
from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write, remove_partial

BACKEND = 'mmsoft.whole_files'


@register_backend(BACKEND)
class WholeFiles(LocalBackend):
    """Local files that take their names once they are whole; outdated ones are removed after that.

    mmengine removes the oldest checkpoint before it writes the newest. If only one is kept, there is none in between.

    Args:
        outdated (list[str]): The files to remove after the next one is written, which :meth:`remove` appends to. It
            belongs to one hook of one run: mmengine makes a backend for each file.
    """

    def __init__(self, outdated: List[str]) -> None:
        self.outdated = outdated

    def put(self, obj: bytes, filepath: Union[str, Path]) -> None:
        """Writes a file, as a whole or not at all.

        Raises:
            UsageError: If it cannot be written.
        """
        try:
            Path(filepath).parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(filepath) as file:
                file.write(obj)
        except OSError as error:
            raise UsageError(f'{filepath} cannot be written ({error.strerror or error}); earlier checkpoints are '
                             'whole: make room, and continue by the same command with --resume.') from error
        while self.outdated:
            path = Path(self.outdated.pop())
            if path != Path(filepath):
                path.unlink(missing_ok=True)

    def remove(self, filepath: Union[str, Path]) -> None:
        """Has a file removed when the next one is written."""
        self.outdated.append(str(filepath))


def latest_checkpoint(work_dir: Union[str, Path]) -> Optional[str]:
    """The newest whole checkpoint of a training, by the number in its name; logs which ones are damaged.

    Args:
        work_dir: The training's work directory. In distributed training the first process should look for all.

    Returns:
        Its path, or None if there is none.
    """
    work_dir = Path(work_dir)
    record = work_dir / 'last_checkpoint'
    last = Path(record.read_text().strip() if record.is_file() else '')

    def numbered(folder: Path) -> List[Path]:
        return [path for path in folder.glob('*.pth') if re.fullmatch(r'(?!best_).*\d', path.stem)]

    def age(path: Path) -> Tuple[bool, int]:
        prefix, number = re.fullmatch(r'(.*?)(\d+)', path.stem).groups()
        return last.stem.startswith(prefix), int(number)

    found = numbered(work_dir) or numbered(last.parent)  # CheckpointHook's out_dir may be elsewhere
    for path in sorted(found, key=age, reverse=True):
        try:
            if {'meta', 'state_dict', 'optimizer'} <= read_checkpoint(path, peek=True).keys():
                return str(path)
        except CheckpointError as error:
            print_log(f'{error} Training continues from the one before, if there is one.', 'current')
    return None


@HOOKS.register_module()
class WholeCheckpointsHook(Hook):
    """Has mmengine's ``CheckpointHook`` write whole files or none, and remove old ones after that.

    Checkpoints in remote storage, and ones whose ``backend_args`` are set, are left to their backends.
    """

    priority = 'VERY_HIGH'

    def before_run(self, runner: Runner) -> None:
        """Chooses the backend."""
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook) and not (hook.backend_args or hook.file_client_args
                                                         or '://' in str(hook.out_dir or runner.work_dir)):
                hook.backend_args = dict(backend=BACKEND, outdated=[])

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Writes logged values as tensors and numbers, so that ``torch.load(weights_only=True)`` reads the file."""
        hub = checkpoint['message_hub']
        hub['log_scalars'] = {
            name: dict(values=[torch.from_numpy(array) for array in buffer.data], max_length=buffer.max_length)
            for name, buffer in hub['log_scalars'].items()
        }
        hub['runtime_info'] = apply_to(
            hub['runtime_info'], lambda value: isinstance(value, np.generic), lambda value: value.item())

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Makes mmengine's history of these values, which it would otherwise start again."""
        for name, logged in checkpoint.get('message_hub', {}).get('log_scalars', {}).items():
            if isinstance(logged, dict):
                values = [tensor.cpu().numpy() for tensor in logged['values']]
                checkpoint['message_hub']['log_scalars'][name] = HistoryBuffer(*values, logged['max_length'])

    def before_train(self, runner: Runner) -> None:
        """Removes what a killed training had begun to write."""
        if is_main_process():
            out_dirs = [hook.out_dir for hook in runner.hooks if isinstance(hook, CheckpointHook) and hook.out_dir]
            for folder in {runner.work_dir, *(Path(one, Path(runner.work_dir).name) for one in out_dirs)}:
                remove_partial(folder)
