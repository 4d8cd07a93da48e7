"""Writing files."""
import fcntl
import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Union


@contextmanager
def whole_or_none(path: Union[str, Path]) -> Iterator[None]:
    """Inside, something else writes a new file, which is removed if it cannot be finished."""
    try:
        yield
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


@contextmanager
def atomic_write(path: Union[str, Path]) -> Iterator[BinaryIO]:
    """Opens a file that takes the place of ``path`` once it is whole; until then and after errors the old one stays.

    It is written under a hidden name of its own beside ``path``, so several processes may write the same file: the last
    to finish wins. What killed processes have left of this file is removed.

    Args:
        path (str or Path): The file, in a folder that exists.

    Raises:
        OSError: If it cannot be written.
    """
    path = Path(path)
    for partial in path.parent.glob(f'.{glob.escape(path.name)}.*.partial'):
        with partial.open('rb') as file, suppress(BlockingIOError):  # which its writer has locked, if it is alive
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink(missing_ok=True)
    partial = path.with_name(f'.{path.name}.{secrets.token_hex(4)}.partial')
    with whole_or_none(partial), partial.open('xb') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
        file.flush()
        os.fsync(file.fileno())
        os.replace(partial, path)
