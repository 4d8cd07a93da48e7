"""Checkpoints that are whole files or none, and the newest of them."""
import re
from pathlib import Path
from typing import List, Optional, Union

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmsoft.checkpoint import CheckpointError, read_checkpoint
from mmsoft.registry import HOOKS
from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write

BACKEND = 'mmsoft.whole_files'


@register_backend(BACKEND)
class WholeFiles(LocalBackend):
    """Local files that take their names once they are whole; what one shall replace is removed after that.

    mmengine removes the oldest checkpoint before it writes the newest: whoever keeps one had none in between.
    """

    _outdated: List[str] = []

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
            raise UsageError(f'{filepath} cannot be written ({error.strerror or error}); the checkpoints before it are '
                             'whole: make room, and the same command with --resume goes on.') from error
        while self._outdated:
            Path(self._outdated.pop()).unlink(missing_ok=True)

    def remove(self, filepath: Union[str, Path]) -> None:
        """Has a file removed when the next one is written."""
        self._outdated.append(str(filepath))


def latest_checkpoint(work_dir: Union[str, Path]) -> Optional[str]:
    """The newest checkpoint of a training that is whole, by the number in its name; says which ones are not.

    Args:
        work_dir: The training's work directory.

    Returns:
        Its path, or None if there is none.
    """
    record = Path(work_dir, 'last_checkpoint')
    last = Path(record.read_text().strip() if record.is_file() else '')
    def age(path: Path) -> tuple:
        prefix, number = re.fullmatch(r'(.*?)(\d+)', path.stem).groups()
        return last.stem.startswith(prefix), int(number)

    def numbered(folder: Path) -> List[Path]:
        return [path for path in folder.glob('*.pth') if re.fullmatch(r'(?!best_).*\d', path.stem)]

    found = numbered(Path(work_dir)) or numbered(last.parent)  # CheckpointHook's out_dir may be elsewhere
    for path in sorted(found, key=age, reverse=True):
        try:
            if {'meta', 'state_dict', 'optimizer'} <= read_checkpoint(path).keys():
                return str(path)
        except CheckpointError as error:
            print_log(f'{error} Training goes on from the one before, if there is one.', 'current')
    return None


@HOOKS.register_module()
class WholeCheckpointsHook(Hook):
    """Has mmengine's ``CheckpointHook`` write whole files or none, and training resume from the newest whole one.

    Checkpoints in remote storage, and ones whose ``backend_args`` are set, are left to their backends.
    """

    priority = 'VERY_HIGH'

    def before_run(self, runner: Runner) -> None:
        """Chooses the backend and, for mmengine's ``resume=True`` without a name, the checkpoint."""
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook) and not (hook.backend_args or hook.file_client_args
                                                         or '://' in str(hook.out_dir or runner.work_dir)):
                hook.backend_args = dict(backend=BACKEND)
        if runner._resume and not runner._load_from:
            runner._load_from = latest_checkpoint(runner.work_dir)
            runner._resume = runner._load_from is not None

    def before_train(self, runner: Runner) -> None:
        """Removes what a killed training had begun to write."""
        if is_main_process():
            for path in Path(runner.work_dir).glob('.*.pth.*.partial'):
                path.unlink()
