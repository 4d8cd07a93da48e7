"""Writing files."""
import os
import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Iterator, Union

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextmanager
def atomic_write(path: Union[str, Path]) -> Iterator[BinaryIO]:
    """Opens a file that takes the place of ``path`` once it is whole; until then and after errors the old one stays.

    It is written under a random hidden name beside ``path``, which no other writer has, and locked while it is.

    Args:
        path (str or Path): The file, in a folder that exists.

    Raises:
        OSError: If it cannot be written.
    """
    path = Path(path)
    partial = path.with_name(f'.{path.name}.{secrets.token_hex(8)}.partial')
    with partial.open('xb') as file:
        try:
            _lock(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(partial, path)
        except BaseException:
            file.close()
            partial.unlink(missing_ok=True)
            raise


def remove_partial(folder: Union[str, Path]) -> None:
    """Removes what killed processes have begun to write to a folder by :func:`atomic_write`.

    What a living process is writing is locked and stays; so does everything where files cannot be locked.
    """
    for path in Path(folder).glob('.*.partial'):
        with suppress(OSError), path.open('rb') as file:
            if _lock(file):
                path.unlink()


def _lock(file: BinaryIO) -> bool:
    """Locks a file until it is closed, if the system can and no other process has."""
    with suppress(OSError):
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


@contextmanager
def whole_or_none(path: Union[str, Path]) -> Iterator[None]:
    """Inside, something else writes a new file, which is removed if it cannot be finished."""
    try:
        yield
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise
