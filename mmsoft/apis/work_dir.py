"""Folders that are written to: with room, and by one training at a time."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout
from mmengine.dist import is_main_process

from ..utils import UsageError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextmanager
def room_in(folder: str, remedy: str) -> Iterator[None]:
    """Makes a UsageError, which names a remedy, of a file inside a folder that cannot be written."""
    try:
        yield
    except OSError as error:
        file = Path(os.path.abspath(str(error.filename)))
        inside = Path(os.path.abspath(folder)) in (file, *file.parents) and not isinstance(error, FileNotFoundError)
        if error.errno not in NO_ROOM and not inside:
            raise
        raise UsageError(f'{error.filename or folder} cannot be written ({error.strerror}); {remedy}.') from error


@contextmanager
def alone_in(work_dir: str) -> Iterator[None]:
    """Makes a folder and keeps other trainings out of it, which get a UsageError; the first process does it for all."""
    with room_in(work_dir, 'make room and add --resume to the same command, or give another --work-dir'):
        Path(work_dir).mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(Path(work_dir, '.lock'), timeout=0) if is_main_process() else nullcontext():
                yield
        except Timeout:
            raise UsageError(
                f'Another training is writing to {work_dir}; wait for its end, or give another --work-dir.'
            ) from None
