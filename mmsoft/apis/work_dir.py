"""Folders that are written to: with room, and by one training at a time."""
import errno
import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from filelock import FileLock, Timeout

from ..utils import UsageError

RANKS = dict(pytorch='RANK', slurm='SLURM_PROCID', mpi='OMPI_COMM_WORLD_RANK')
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextmanager
def room_in(folder: str, remedy: str) -> Iterator[None]:
    """Inside, a file of a folder that cannot be written is a UsageError, which says a remedy."""
    try:
        yield
    except OSError as error:
        inside = str(error.filename).startswith(str(folder)) and not isinstance(error, FileNotFoundError)
        if error.errno not in NO_ROOM and not inside:
            raise
        raise UsageError(f'{error.filename or folder} cannot be written ({error.strerror}); {remedy}.') from error


@contextmanager
def alone_in(work_dir: str, launcher: str = 'none') -> Iterator[None]:
    """Inside, no other training writes to a folder, which is made; the first process of a launcher keeps others out.

    Raises:
        UsageError: If another training writes there, or if the folder cannot be written to.
    """
    lock = FileLock(Path(work_dir, '.lock'), timeout=0)
    logging.raiseExceptions, before = False, logging.raiseExceptions  # a full disk would be a trace for each log line
    try:
        with room_in(work_dir, 'make room, and the same command with --resume goes on, or give another --work-dir'):
            if os.environ.get(RANKS.get(launcher, ''), '0') == '0':
                Path(work_dir).mkdir(parents=True, exist_ok=True)
                lock.acquire()
            yield
    except Timeout:
        raise UsageError(
            f'Another training is writing to {work_dir}; wait for its end, or give another --work-dir.') from None
    finally:
        logging.raiseExceptions = before
        lock.release()
