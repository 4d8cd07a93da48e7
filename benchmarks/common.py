"""What identifies a measurement: code, commit and machine; and how its table is written."""

import hashlib
import platform
import re
import subprocess
from pathlib import Path

import pandas as pd
import torch
from mmengine.logging import MMLogger

from mmsoft.utils.files import atomic_write

ROOT = Path(__file__).resolve().parents[1]


def code_version() -> tuple[str, str]:
    """A hash of all code that is measured or measures, and the commit, ``+`` behind it if there are changes."""
    digest = hashlib.sha1()
    for path in sorted([*ROOT.glob('mmsoft/**/*.py'), *ROOT.glob('benchmarks/*.py')]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:10], commit()


def commit() -> str:
    """The commit that is checked out, ``+`` behind it if files are changed, or ``'unknown'``."""
    command = ['git', 'describe', '--always', '--abbrev=10', '--dirty=+', '--exclude=*']
    git = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return git.stdout.strip() or 'unknown'


def processor(device: str = 'cpu') -> str:
    """Name of the processor, or of the GPU."""
    if device != 'cpu':
        return torch.cuda.get_device_name()
    info = Path('/proc/cpuinfo')
    found = re.search(r'model name\s*: (.*)', info.read_text() if info.exists() else '')
    return found[1] if found else platform.processor()


def read_table(file: Path) -> pd.DataFrame:
    """Reads a CSV file; hashes and versions stay text, whatever number they look like."""
    return pd.read_csv(file, dtype=dict.fromkeys(('code', 'commit', 'machine', 'torch'), str))


def write_table(table: pd.DataFrame, file: Path) -> None:
    """Writes a CSV file, whole or not at all."""
    with atomic_write(file) as stream:
        stream.write(table.to_csv(index=False).encode())


def be_quiet() -> None:
    """Leaves out what mmengine logs about initial weights."""
    if not MMLogger.check_instance_created('benchmarks'):
        MMLogger.get_instance('benchmarks', log_level='ERROR')
