"""What measurements share: what identifies one, its table as CSV and as Markdown, and the marked places of pages."""

import functools
import hashlib
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Callable, Optional

import numpy as np
import pandas as pd
import torch
from mmengine.logging import MMLogger
from tabulate import tabulate

from mmsoft.utils.files import atomic_write

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r'(<!-- (benchmark|evidence|compared|results) ?([\w= ]*) -->\n).*?(<!-- end -->)', re.S)


def code_version() -> tuple[str, str]:
    """A hash of all code that is measured or measures, and the commit, ``+`` behind it if there are changes."""
    digest = hashlib.sha1()
    for path in sorted([*ROOT.glob('mmsoft/**/*.py'), *ROOT.glob('benchmarks/*.py')]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:10], commit()


@functools.cache  # what is published changes files, too
def commit() -> str:
    """The commit that is checked out, ``+`` behind it if files are changed, or ``'unknown'``."""
    command = ['git', 'describe', '--always', '--abbrev=10', '--dirty=+', '--exclude=*']
    try:
        git = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        return 'unknown'
    return git.stdout.strip() or 'unknown'


def processor(device: str = 'cpu') -> str:
    """Name of the processor, or of the GPU."""
    if device != 'cpu':
        return torch.cuda.get_device_name()
    info = Path('/proc/cpuinfo')
    found = re.search(r'model name\s*: (.*)', info.read_text() if info.exists() else '')
    return found[1] if found else platform.processor()


def be_quiet() -> None:
    """Leaves out what mmengine logs about initial weights."""
    if not MMLogger.check_instance_created('benchmarks'):
        MMLogger.get_instance('benchmarks', log_level='ERROR')


def read_table(file: Path) -> pd.DataFrame:
    """Reads a CSV file; hashes and versions stay text, whatever number they look like."""
    return pd.read_csv(file, dtype=dict.fromkeys(('code', 'commit', 'machine', 'torch'), str))


def write_table(table: pd.DataFrame, file: Path) -> None:
    """Writes a CSV file, whole or not at all."""
    with atomic_write(file) as stream:
        stream.write(table.to_csv(index=False).encode())


def markdown(rows: Iterable[Sequence], header: Sequence[str]) -> str:
    """A table as Markdown, with cells as they are given."""
    return tabulate(rows, header, tablefmt='github', disable_numparse=True)


def spread(values: Iterable[Optional[float]], digits: int = 3, unit: float = 1.0) -> str:
    """The mean, and minimum and maximum if they are printed otherwise; nothing of no values."""
    known = [unit * value for value in values if value is not None]
    if not known:
        return ''
    low, middle, high = (f'{value:.{digits}f}' for value in (min(known), np.mean(known), max(known)))
    return middle if low == high else f'{middle} ({low}–{high})'


def fill_page(page: Path, **makers: Callable[[str], Optional[str]]) -> None:
    """Fills the marked places of a file, see :func:`filled`."""
    page.write_text(filled(page.read_text(), **makers))


def finish(name: str, table: pd.DataFrame, text: str, docs: Optional[Path]) -> None:
    """Prints a table's text; with ``docs``, writes ``data/NAME.csv`` and the text's place on the benchmark's page."""
    if docs:
        write_table(table, docs / f'data/{name}.csv')
        fill_page(docs / 'benchmark_method.md', benchmark={name: text}.get)
    print(text)


def filled(page: str, **makers: Callable[[str], Optional[str]]) -> str:
    """A page with other text between its lines ``<!-- KIND WORDS -->`` and ``<!-- end -->``.

    Args:
        page (str): Markdown.
        **makers (Callable): For each kind of place to fill, the text for its words; None leaves the place alone.
    """

    def fill(found: re.Match) -> str:
        text = makers[found[2]](found[3]) if found[2] in makers else None
        return found[0] if text is None else f'{found[1]}{text}\n{found[4]}'

    return MARKED.sub(fill, page)
