"""Writing files."""
import os
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Iterator, Union


@contextmanager
def atomic_write(path: Union[str, Path]) -> Iterator[BinaryIO]:
    """Opens a file that takes the place of ``path`` once it is whole; until then and after errors the old one stays.

    Args:
        path (str or Path): The file, in a folder that exists.

    Raises:
        OSError: If it cannot be written.
    """
    path = Path(path)
    partial = path.with_name(f'.{path.name}.{os.getpid()}.partial')
    try:
        with partial.open('xb') as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_or_none(path: Union[str, Path]) -> Iterator[None]:
    """Inside, something else writes a new file, which is removed if it cannot be finished."""
    try:
        yield
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise
