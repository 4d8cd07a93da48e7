"""What the tasks have in common."""
import json
from pathlib import Path
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from typing import Any, List

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
    """The list that a JSON file will be; more of it than a few megabytes waits on the disk."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(2**22)

    def add(self, entries: List[dict]) -> None:
        """Appends them."""
        text = ', '.join(map(json.dumps, entries))
        self._file.write((', ' * bool(text and self._file.tell()) + text).encode())

    def dump(self, path: Path) -> None:
        """Writes the file, as a whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file.seek(0)
        with atomic_write(path) as file:
            file.write(b'[')
            copyfileobj(self._file, file)
            file.write(b']')


def dump(content: Any, path: Path) -> None:
    """Writes a JSON file, as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(json.dumps(content).encode())
