"""One training of a row: its result is kept in a folder, so that it is not done again."""

import json
import shutil
from pathlib import Path
from typing import Optional

import torch

from mmsoft.utils.files import atomic_write

from ..common import be_quiet, commit
from . import store
from .rows import ROWS


def train_row(folder: Path, name: str, seed: int) -> None:
    """Trains a row with a seed, and writes ``result.json`` to a folder of their names; of another row it is emptied."""
    be_quiet()
    row, own = ROWS[name], folder / f'{name}_seed{seed}'
    begun = own / 'key.txt'
    if own.exists() and not (begun.is_file() and begun.read_text() == row.key):
        shutil.rmtree(own)  # from whose checkpoints a training would go on
    own.mkdir(parents=True, exist_ok=True)
    begun.write_text(row.key)
    found = row.task.train(seed, folder / 'shapes', own)
    record = dict(row=name, seed=seed, key=row.key, commit=commit(), torch=torch.__version__, **found)
    with atomic_write(own / 'result.json') as file:
        file.write(json.dumps(record).encode())


def done(folder: Path, name: str, seed: int) -> Optional[store.Record]:
    """The result of a training, if it is there, and the row has not changed since."""
    file = folder / f'{name}_seed{seed}' / 'result.json'
    found = json.loads(file.read_text()) if file.is_file() else {}
    return found if found.get('key') == ROWS[name].key else None
