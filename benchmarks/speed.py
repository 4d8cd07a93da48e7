"""Measures contenders side by side in turn, with both allocators: ``tools/benchmark.py``."""
import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

import pandas as pd
import torch
from rich.progress import Progress

from mmsoft.utils import UsageError
from .common import ROOT, code_version, processor, read_table, write_table
from .contenders import CONTENDERS, contender
from .kernels import look_at_kernels
from .speed_report import write_report
from .worker import Case, Settings

Size = Tuple[int, int]
KEPT = str(2**32 - 1)
# glibc gives large blocks back to the system at once; each new one then costs page faults. Many deployments run with
# an allocator that keeps them, such as jemalloc or tcmalloc; these settings make glibc keep them, too.
ALLOCATORS: Dict[str, Dict[str, str]] = {
    'glibc': {},
    'keeps pages': dict(MALLOC_MMAP_MAX_='0', MALLOC_MMAP_THRESHOLD_=KEPT, MALLOC_TRIM_THRESHOLD_=KEPT,
                        MALLOC_TOP_PAD_='500000000'),
}
# Whatever decides what a run measures; a run with all of them equal is not repeated, and no other is reported.
CASE = list(Case._fields)
KEY = [*CASE, 'allocator', *Settings._fields, 'weights_hash', 'code', 'machine', 'torch']
QUICK = dict(models=['soft_norm_nano', 'pvt_tiny'], sizes=[(64, 64), (64, 96)], spectrum=(64, 96), rounds=1)


def run_benchmark(models: Sequence[str],
                  sizes: Iterable[Size],
                  passes: Sequence[bool],
                  file: Path,
                  settings: Settings = Settings(),
                  rounds: int = 5,
                  patience: float = 30.,
                  checkpoint: Optional[str] = None) -> pd.DataFrame:
    """Measures each contender with all weights and images that might matter to it, and with both allocators on a CPU.

    Args:
        models (Sequence[str]): See :func:`contender`.
        sizes (Iterable[tuple[int, int]]): Rows and columns of the images.
        passes (Sequence[bool]): Whether to run backward as well, an entry for each pass to measure.
        file (Path): CSV file. A run that it holds under the same :data:`KEY` and round is not repeated; new ones are
            appended after each round.
        settings (Settings): Device, arithmetic and so on.
        rounds (int): In each of them every case has one turn.
        patience (float): Seconds of a run after which a contender has no further turn, and none at larger sizes.
        checkpoint (str, optional): Further weights for the SOFTs among the contenders.

    Returns:
        DataFrame: The runs that were asked for: :data:`KEY`, ``commit``, ``round``, ``seconds``, ``memory`` (peak
        bytes above weights and image, NaN except in the first round), and a ``note`` if it failed.
    """
    known = read_table(file) if file.exists() else pd.DataFrame(columns=KEY)
    if not {*KEY} <= {*known.columns}:
        raise UsageError(f'{file} is of an older version of this tool; move it away or choose another --out-dir.')
    code, commit_ = code_version()
    common = dict(settings._asdict(), code=code, machine=processor(settings.device), torch=torch.__version__)
    digest = hashlib.sha1(Path(checkpoint).read_bytes()).hexdigest()[:10] if checkpoint else ''
    allocators = ALLOCATORS if settings.device == 'cpu' else ['glibc']
    columns = [*KEY, 'round']
    done = {tuple(str(row[name]) for name in columns): row for row in known.to_dict('records')}
    rows, slow = [], set()
    groups = list(itertools.product(sorted(sizes, key=lambda size: size[0] * size[1]), passes))
    with Workers(settings) as workers, Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task('', total=sum(map(_work, groups)) * rounds)
        for ((height, width), backward), turn in itertools.product(groups, range(rounds)):
            progress.update(task, description=f'{height}×{width}{" training" * backward}, round {turn + 1}')
            cases = [Case(model, *condition, height, width, backward) for model in models
                     for condition in contender(model).conditions(checkpoint)]
            fresh = []
            for case, allocator in itertools.product(cases, allocators):
                who = (case.model, case.weights, case.image, backward, allocator)
                row = dict(case._asdict(), allocator=allocator, **common, round=turn,
                           weights_hash=digest if case.weights == checkpoint else '-')
                same = done.get(tuple(str(row[name]) for name in columns))
                if same is None and who not in slow:
                    fresh.append(dict(row, commit=commit_, **workers.run(case, allocator, with_memory=turn == 0)))
                    same = fresh[-1]
                if same is not None:
                    rows.append(same)
                    if not same['seconds'] < patience:
                        slow.add(who)
            progress.advance(task, _work(((height, width), backward)))
            if fresh:
                known = pd.concat([known, pd.DataFrame(fresh)]) if len(known) else pd.DataFrame(fresh)
                write_table(known, file)
    return pd.DataFrame(rows)


class Workers:
    """A process for each contender and allocator. If one ends for lack of memory, the others go on."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.processes: Dict[Tuple[str, str], subprocess.Popen] = {}

    def run(self, case: Case, allocator: str, with_memory: bool = True) -> dict:
        """``seconds``, ``memory`` and ``note`` of one run. An error of the code ends the benchmark."""
        key = case.model, allocator
        if key not in self.processes:
            env = {name: value for name, value in os.environ.items() if not name.startswith('MALLOC_')}
            env.update(ALLOCATORS[allocator], PYTHONPATH=os.pathsep.join([str(ROOT), env.get('PYTHONPATH', '')]))
            self.processes[key] = subprocess.Popen([sys.executable, '-W', 'ignore', '-m', 'benchmarks.worker'], env=env,
                                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process, answer = self.processes[key], ''
        try:
            task = dict(case=case, settings=self.settings, with_memory=with_memory)
            process.stdin.write(json.dumps(task) + '\n')
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            pass
        if not answer:
            del self.processes[key]
            if process.wait() > 0:
                raise RuntimeError(f'the worker of {case.model} failed; its trace is above')
            answer = json.dumps(dict(note='ended by the system, which may be out of memory'))
        return dict(dict(seconds=float('nan'), memory=None, note=''), **json.loads(answer))

    def __enter__(self) -> 'Workers':
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


def _work(group: Tuple[Size, bool]) -> int:
    (height, width), backward = group
    return height * width * (3 if backward else 1)


def size(text: str) -> Size:
    """``'512'`` or ``'800x1344'`` as rows and columns."""
    rows, _, columns = text.partition('x')
    return int(rows), int(columns or rows)


def parse_args(arguments: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Measures time and memory of SOFT, SimA and backbones of the OpenMMLab libraries, in turn, in '
        'evaluation and training, for several weights and images, with glibc\'s allocator and one that keeps pages.',
        epilog='Interrupted, the same command goes on. Runs of other code, settings or machines are not reused.')
    add = parser.add_argument
    add('--models', nargs='+', metavar='MODEL', default=[name for name in CONTENDERS if name != 'soft_norm_nano'],
        help=f'from {", ".join(CONTENDERS)}, with options behind a colon, as in '
        'soft_norm_small:attention.bottleneck_size=7 (default: all but nano)')
    add('--sizes', nargs='+', type=size, metavar='SIZE', default=[(224, 224), (512, 512), (800, 1344)],
        help='images as 512 or 800x1344 (default: 224 512 800x1344)')
    add('--passes', nargs='+', choices=['eval', 'train'], default=['eval', 'train'], help='default: both')
    add('--spectrum', type=size, metavar='SIZE', default=(512, 512),
        help='image for the kernel matrices and the accuracy of SOFT (default: 512; 0 leaves them out)')
    add('--checkpoint', help='further weights for SOFT, such as those of make train for soft_norm_nano')
    add('--rounds', type=int, default=5, help='turns of each backbone (default: %(default)s)')
    add('--patience', type=float, default=30, metavar='SECONDS',
        help='skip further rounds and larger sizes of what takes longer for one run (default: %(default)s)')
    add('--device', choices=['cpu', 'cuda'], default='cuda' if torch.cuda.is_available() else 'cpu',
        help='default: %(default)s')
    add('--dtype', choices=['float32', 'tf32', 'bfloat16', 'float16'], default='float32', help='default: %(default)s')
    add('--compile', action='store_true', help='with torch.compile')
    add('--threads', type=int, default=torch.get_num_threads(), help='on the CPU (default: all cores)')
    add('--batch', type=int, default=1, help='images at a time (default: %(default)s)')
    add('--quick', action='store_true', help='small backbones on small images: does it run?')
    add('--out-dir', type=Path, help='folder of runs and report (default: work_dirs/benchmark, or …_quick)')
    add('--publish', action='store_true', help='also write the runs of this command to docs/data/')
    return parser.parse_args(arguments)


def run(models: Sequence[str], sizes: Sequence[Size], passes: Sequence[str], spectrum: Size, checkpoint: Optional[str],
        rounds: int, patience: float, out_dir: Path, publish: bool = False, docs: Path = ROOT / 'docs',
        **settings) -> Path:
    """Measures and writes the report, see :func:`run_benchmark`; the options are those of the command line.

    Raises:
        UsageError: If a contender or the checkpoint does not exist, or the device cannot do what is asked for.
    """
    settings = Settings(**settings)
    for model in models:
        contender(model)
    if checkpoint and not Path(checkpoint).is_file():
        raise UsageError(f'There is no checkpoint {checkpoint}.')
    check_device(settings.device, [settings.dtype])
    runs = run_benchmark(models, sizes, [name == 'train' for name in passes], out_dir / 'runs.csv', settings, rounds,
                         patience, checkpoint)
    kernels = look_at_kernels(models if all(spectrum) else [], spectrum, out_dir / 'kernels.csv', checkpoint)
    if publish:
        write_table(runs, docs / 'data/benchmark.csv')
        write_table(kernels, docs / 'data/benchmark_kernels.csv')
    return write_report(runs, kernels, out_dir)


def check_device(device: str, dtypes: List[str]) -> None:
    """Raises UsageError if there is no such device here or it has no such arithmetic."""
    if device == 'cuda' and not torch.cuda.is_available():
        raise UsageError('--device cuda needs a GPU that PyTorch can use, and finds none; take --device cpu.')
    if device == 'cpu' and {'tf32', 'float16'} & set(dtypes):
        raise UsageError(f'--dtype {" ".join(dtypes)} needs a GPU; a CPU takes float32 and bfloat16.')


def main() -> None:
    """Runs the command line."""
    options = vars(parse_args())
    quick = options.pop('quick')
    options.update(QUICK if quick else {})
    options['out_dir'] = options['out_dir'] or Path(f'work_dirs/benchmark{"_quick" * quick}')
    report = run(**options)
    print(f'{report.read_text()}\nThe report is {report}')
