"""Runs contenders side by side and writes what they cost."""
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import Dict, Iterator, List, Optional, Sequence, Set, Tuple

from mmengine.logging import print_log

from .benchmark_worker import Case, MeasurementError, Settings, Worker, preload

Size = Tuple[int, int]


@dataclass
class Record:
    """The cost of one contender on one size of images.

    Attributes:
        model: Key of the contender.
        size: Rows and columns of the images.
        backward: Whether the backward pass is part of it.
        seconds: One entry a repeat.
        memory: Peak bytes above the weights and the images, or None if unknown.
        flops: Multiply-accumulates of the forward pass without SOFT's inverse, on a GPU.
        note: Why there are no figures, or fewer than asked for.
    """
    model: str
    size: Size
    backward: bool
    seconds: List[float] = field(default_factory=list)
    memory: Optional[int] = None
    flops: Optional[float] = None
    note: str = ''

    @property
    def tokens(self) -> int:
        """Tokens n of a map of stride 4."""
        return -(-self.size[0] // 4) * -(-self.size[1] // 4)

    @property
    def median(self) -> Optional[float]:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def spread(self) -> float:
        """Half the range of the repeats, relative to their median."""
        return (max(self.seconds) - min(self.seconds)) / 2 / self.median if self.seconds else 0.

    def as_dict(self) -> Dict:
        return dict(asdict(self), tokens=self.tokens, median=self.median, spread=self.spread)


def run_benchmark(models: Sequence[str],
                  sizes: Sequence[Size],
                  passes: Sequence[bool] = (False, True),
                  settings: Settings = Settings(),
                  repeats: int = 5,
                  patience: float = 30.) -> Iterator[List[Record]]:
    """Measures contenders in turn, one size after the other, so that what slows the machine slows them all.

    Args:
        models (Sequence[str]): Keys of the contenders.
        sizes (Sequence[tuple[int, int]]): Rows and columns of the images.
        passes (Sequence[bool]): Whether to run backward as well, one entry a pass to measure.
        settings (Settings): Device, dtype and so on.
        repeats (int): Times that each contender has its turn. Defaults to 5.
        patience (float): Seconds after which a contender has no more turns. If one run takes longer, it is the only
            one, and larger images are left out.

    Yields:
        list[Record]: All records so far, whenever one size has been run.
    """
    preload(models)
    records: List[Record] = []
    impatient: Set[Tuple[str, bool]] = set()
    groups = [(size, backward) for size in sorted(sizes, key=_area) for backward in passes]
    weights = [_area(size) * (3 if backward else 1) for size, backward in groups]
    start = time.monotonic()
    for i, (size, backward) in enumerate(groups):
        cases = [Case(model, size, backward) for model in models]
        records += _side_by_side(cases, settings, repeats, patience, impatient)
        left = (time.monotonic() - start) * sum(weights[i + 1:]) / sum(weights[:i + 1])
        print_log(f'[{i + 1}/{len(groups)}] {size_name(size)} {pass_name(backward)} is done, '
                  f'about {left / 60:.0f} minutes left')
        yield records


def pass_name(backward: bool) -> str:
    """What the tables call it."""
    return 'forward + backward' if backward else 'forward'


def size_name(size: Size) -> str:
    """What the tables call it."""
    return f'{size[0]}²' if size[0] == size[1] else f'{size[0]}×{size[1]}'


def _side_by_side(cases: Sequence[Case], settings: Settings, repeats: int, patience: float,
                  impatient: Set[Tuple[str, bool]]) -> List[Record]:
    records, workers = [], []
    try:
        for case in cases:
            record = Record(*case)
            records.append(record)
            if (case.model, case.backward) in impatient:
                record.note = 'left out, too slow'
                continue
            worker = Worker(case, settings)
            workers.append((worker, record))
            _try(_first_run, worker, record)
            print_log(f'    {case.model}: {_summary(record)}')
            if record.seconds and record.seconds[0] > patience:
                impatient.add((case.model, case.backward))
                record.note = 'one run'
            elif record.seconds:
                record.seconds.clear()  # the first run warms up
            if record.note:
                worker.close()
        for _ in range(repeats):
            for worker, record in workers:
                if not record.note and sum(record.seconds) < patience:
                    _try(_another_run, worker, record)
    finally:
        for worker, _ in workers:
            worker.close()
    return records


def _first_run(worker: Worker, record: Record) -> None:
    seconds, record.memory, record.flops = worker.first_run()
    record.seconds.append(seconds)


def _another_run(worker: Worker, record: Record) -> None:
    record.seconds.append(worker.seconds())


def _try(measure, worker: Worker, record: Record) -> None:
    """One contender's failure is a note in the table, not the end of the run."""
    try:
        measure(worker, record)
    except MeasurementError as error:
        record.note = str(error)


def _summary(record: Record) -> str:
    time = f'{record.median:.3g} s in the first run' if record.seconds else ''
    memory = f'{record.memory / 1e6:.0f} MB' if record.memory is not None else ''
    return ', '.join(filter(None, [time, memory, record.note]))


def _area(size: Size) -> int:
    return size[0] * size[1]
