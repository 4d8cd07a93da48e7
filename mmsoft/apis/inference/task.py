"""What the tasks have in common."""
import json
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import Any, BinaryIO, List, Optional

import numpy as np
from mmengine.dataset import pseudo_collate
from rich.progress import Progress

from mmsoft.utils.files import atomic_write


class Task:
    """A model that predicts, by its host's inferencer, and what its predictions look like.

    A subclass is made from a config, a checkpoint, a device, a palette's name, an opacity (each of these three may be
    None, for the host's choice) and the score below which detections are not drawn. It sets :attr:`inferencer`, and
    defines ``draw(image, sample, path)``, which draws a prediction on an RGB picture and saves it;
    ``record(name, label_name, sample, folder)``, which keeps a prediction or saves it below the folder; and
    ``save(folder)``, which writes what was kept. While it predicts, :attr:`progress` shows how far it is.
    """

    collate = staticmethod(pseudo_collate)
    inferencer: Any
    progress: Progress

    def prepare(self, image: np.ndarray) -> dict:
        """A BGR picture, as the model takes it; its ``inputs`` is a tensor of shape (3, H, W)."""
        shape = image.shape[:2]
        return self.inferencer.pipeline(dict(img=image, img_shape=shape, ori_shape=shape))

    def forward(self, prepared: List[dict]) -> list:
        """Prepared pictures of one shape to the host's data samples."""
        return self.inferencer.forward(self.collate(prepared))


class Entries:
    """The list that a JSON file will be. Until then it waits in a file without a name beside it, whole entries of it."""

    def __init__(self) -> None:
        self._file: Optional[BinaryIO] = None
        self._end = 0

    def add(self, entries: List[dict], folder: Path) -> None:
        """Appends them, on the disk of a folder."""
        if self._file is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = TemporaryFile(buffering=0, dir=str(folder))
        text = ', '.join(map(json.dumps, entries))
        rest = (', ' * bool(text and self._end) + text).encode()
        self._file.seek(self._end)
        while rest:
            rest = rest[self._file.write(rest):]
        self._end = self._file.tell()

    def dump(self, path: Path) -> None:
        """Writes the file, as a whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(b'[')
            if self._file is not None:
                self._file.truncate(self._end)
                self._file.seek(0)
                copyfileobj(self._file, file)
            file.write(b']')


def dump(content: Any, path: Path) -> None:
    """Writes a JSON file, as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(json.dumps(content).encode())
