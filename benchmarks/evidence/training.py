"""One training: of a row, with a seed, in a folder of their names."""

import json
from pathlib import Path
from typing import Any, Optional

import torch

from mmsoft.utils.files import atomic_write

from ..common import be_quiet, commit
from . import closing
from .far import Far
from .rows import ROWS
from .scenes import train


def train_row(folder: Path, name: str, seed: int) -> None:
    """Trains a row with a seed, and writes ``result.json`` to a folder of their names."""
    be_quiet()
    row, own = ROWS[name], folder / f'{name}_seed{seed}'
    if isinstance(row.task, Far):
        found = row.task.train(seed)[1]
    elif isinstance(row.task, closing.Watched):
        found = closing.train(row.task, seed, str(folder / 'shapes'), str(own))
    else:
        found = train(row.task, seed, str(folder / 'shapes'), str(own))
    record = dict(row=name, seed=seed, key=row.key, commit=commit(), torch=torch.__version__, **found)
    with atomic_write(own / 'result.json') as file:
        file.write(json.dumps(record).encode())


def done(folder: Path, name: str, seed: int) -> Optional[dict[str, Any]]:
    """The result of a training, if it is there, and the row has not changed since."""
    file = folder / f'{name}_seed{seed}' / 'result.json'
    found = json.loads(file.read_text()) if file.is_file() else {}
    return found if found.get('key') == ROWS[name].key else None
