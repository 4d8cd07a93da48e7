"""Writing files."""

import errno
import fcntl
import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Union

from . import UsageError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY)
DISK = (*_FULL, *_FORBIDDEN, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO)
"""Errors of a disk: full, forbidden, a file in place of a folder or the reverse, a wrong name, broken."""


@contextmanager
def whole_or_none(path: Union[str, Path]) -> Iterator[None]:
    """Context in which something else writes a new file; after an exception, the file is removed."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            Path(path).unlink()
        raise


@contextmanager
def atomic_write(path: Union[str, Path]) -> Iterator[BinaryIO]:
    """Opens a file that replaces ``path`` once it is complete; until then, and after errors, the old file stays.

    The file is written under a hidden name beside ``path``. If several processes write it, the last to finish wins.
    Files that killed processes left are removed. The folder is created. OSError, with ``filename``, if writing fails.
    """
    given, path = str(path), Path(os.path.realpath(path))  # a link stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # such as /dev/null
        raise FileExistsError(errno.EEXIST, 'not a file', given)
    name = path.name[:50]  # a long name may have the disk's maximum length
    for left in path.parent.glob(f'.{glob.escape(name)}.*.partial'):
        with suppress(OSError), left.open('rb') as file:  # a running writer has locked it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
    begun = path.with_name(f'.{name}.{secrets.token_hex(4)}')
    partial = begun.with_name(f'{begun.name}.partial')
    try:
        with whole_or_none(begun), whole_or_none(partial), begun.open('xb') as file:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            begun.rename(partial)  # locked before others see it
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, path)
    except OSError as error:
        error.filename = given
        raise


def check_new(folder: str, option: str = '--out-dir') -> None:
    """Raises UsageError if the folder for results, given by ``option``, is not empty."""
    if os.path.lexists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise UsageError(f'{folder} is not empty, and nothing there is overwritten; choose another {option}.')
