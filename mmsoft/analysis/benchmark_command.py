"""The whole benchmark: measure, and write the report after each size."""
from pathlib import Path
from typing import Sequence, Tuple

import torch
from mmengine.logging import print_log

from mmsoft.utils.errors import UsageError
from .accuracy import accuracy_section, measure_accuracy
from .benchmark import run_benchmark
from .benchmark_report import write_report
from .benchmark_worker import Settings, matrix_rate
from .machine import describe_machine

# Options that show in seconds whether everything runs.
QUICK = dict(models=['soft_nano', 'soft_nano_published'], sizes=[(64, 64), (96, 128)], accuracy=[(64, 64)], repeats=2)


def benchmark(models: Sequence[str],
              sizes: Sequence[Tuple[int, int]],
              passes: Sequence[bool],
              accuracy: Sequence[Tuple[int, int]],
              out_dir: Path,
              repeats: int = 5,
              patience: float = 30.,
              **settings) -> Path:
    """Measures contenders and writes tables, plots and the machine's description.

    Args:
        models (Sequence[str]): Keys of the contenders.
        sizes (Sequence[tuple[int, int]]): Rows and columns of the images.
        passes (Sequence[bool]): Whether to run backward as well, one entry a pass to measure.
        accuracy (Sequence[tuple[int, int]]): Images to measure the accuracy on.
        out_dir (Path): Folder for the report.
        repeats (int): Times that each contender has its turn.
        patience (float): Seconds for a contender's turns on one size, see :func:`run_benchmark`.
        **settings: Fields of :class:`Settings`.

    Returns:
        Path: The report in Markdown.

    Raises:
        UsageError: If the device cannot do what is asked for.
    """
    settings = Settings(**settings)
    if settings.device == 'cuda' and not torch.cuda.is_available():
        raise UsageError('--device cuda needs a GPU that PyTorch can use, and finds none; take --device cpu.')
    if settings.device == 'cpu' and settings.dtype in ('tf32', 'float16'):
        raise UsageError(f'--dtype {settings.dtype} needs a GPU; a CPU takes float32 and bfloat16.')
    machine = describe_machine(settings.device, settings.threads)
    machine['setting'] = (f'{settings.device}, {settings.dtype}{", torch.compile" * settings.compile}, '
                          f'batch {settings.batch}')
    section, rate = accuracy_section(measure_accuracy(models, accuracy)), matrix_rate(settings)
    for records in run_benchmark(models, sizes, passes, settings, repeats, patience):
        report = write_report(records, Path(out_dir), machine, section, rate)
    print_log(f'The tables and plots are in {report.parent}.')
    return report
