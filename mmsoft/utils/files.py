"""Writing files."""
import os
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Iterator, Union


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

    It is written under a hidden name beside ``path``, always the same one: what a killed process has left is replaced
    by the next write. Only one process at a time may write a file.

    Args:
        path (str or Path): The file, in a folder that exists.

    Raises:
        OSError: If it cannot be written.
    """
    path = Path(path)
    partial = path.with_name(f'.{path.name}.partial')
    with whole_or_none(partial), partial.open('wb') as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
        file.close()
        os.replace(partial, path)
