"""Trains detectors of tree crowns, tests them on whole photographs and draws what they find.

After an interruption the same command continues; what is done is not done again.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Optional

from mmengine.runner import find_latest_checkpoint
from tabulate import tabulate

from mmsoft.apis import test, train
from mmsoft.apis.cli import command_line
from mmsoft.utils.config import load_config
from mmsoft.utils.files import atomic_write

from .tiles import TESTED, make_data

CONFIGS = Path(__file__).parent / 'configs'
NAMES = sorted(path.stem for path in CONFIGS.glob('*.py'))
FORESTS = ('florida', 'california')
ROOT, WORK = Path('data/trees'), Path('work_dirs/trees')


def run(name: str, seed: int, options: Optional[dict] = None) -> dict[str, float]:
    """Trains a config and tests it on each photograph; ``scores.json`` in its folder holds what it returns.

    Returns:
        AP50 by photograph, AP of the validation photograph (of 100 detections), and AP50 of it without attention.
    """
    config, folder = str(CONFIGS / f'{name}.py'), WORK / f'{name}_{seed}'
    file = folder / 'scores.json'
    if file.exists():
        return dict(json.loads(file.read_text()))
    train(config, str(folder), resume='auto', cfg_options={'randomness.seed': seed, **(options or {})})
    checkpoint = find_latest_checkpoint(str(folder))
    scores = {}
    for photograph in TESTED:
        found = _test(config, checkpoint, folder, photograph, show_dir='drawn')
        scores[photograph], scores[f'{photograph} AP'] = found
    if load_config(config).model.backbone.type.startswith('mmsoft.'):
        scores['without attention'], _ = _test(config, checkpoint, folder, 'validation', without_attention=[])
    with atomic_write(file) as stream:
        stream.write(json.dumps(scores, indent=1).encode())
    return scores


def _test(config: str, checkpoint: str, folder: Path, photograph: str, **options) -> tuple[float, float]:
    """AP50 and AP of one photograph; they are 0, which the metric leaves out, if nothing was found."""
    file = f'{photograph}.json'
    files = {'test_dataloader.dataset.ann_file': file, 'test_evaluator.ann_file': f'{ROOT}/{file}'}
    scores = test(config, checkpoint, str(folder), cfg_options=files, **options)
    return scores.get('coco/bbox_mAP_50', 0.0), scores.get('coco/bbox_mAP', 0.0)


def table(runs: dict[str, list[dict[str, float]]]) -> str:
    """Means over seeds and, of several, their spread (standard deviation), as a Markdown table."""
    columns = {
        'AP50, validation': lambda one: one['validation'],
        'AP': lambda one: one['validation AP'],
        'AP50, other forests': lambda one: mean(one[forest] for forest in FORESTS),
        'AP50, validation, attention taken away': lambda one: one.get('without attention'),
    }
    rows = [
        [name, len(each), *(_summary([of(one) for one in each]) for of in columns.values())]
        for name, each in runs.items()
    ]
    return tabulate(rows, ['config', 'seeds', *columns], tablefmt='github', disable_numparse=True)


def _summary(values: Sequence[Optional[float]]) -> str:
    if None in values:
        return '–'
    return f'{mean(values):.3f}' + (f' ± {stdev(values):.3f}' if len(values) > 1 else '')


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog='python -m projects.trees', description=__doc__)
    add = parser.add_argument
    add('names', nargs='*', metavar='NAME', help=f'what to train, of {", ".join(NAMES)} (default: soft_norm)')
    add('--photographs', metavar='DIR', help='folder data/ of the package deepforest; needed the first time')
    add('--seeds', type=int, nargs='+', default=[0], help='seeds of the trainings of each (default: 0)')
    args = parser.parse_args()
    names = args.names or ['soft_norm']
    if not set(names) <= set(NAMES):
        parser.error(f'choose from {", ".join(NAMES)}')
    if not (ROOT / 'train.json').exists():
        if not args.photographs:
            parser.error('--photographs is needed the first time: the folder data/ of the package deepforest')
        make_data(args.photographs, ROOT)
    runs = {name: [run(name, seed) for seed in args.seeds] for name in names}
    print(f'{table(runs)}\n\nDetections beside annotations are drawn in {WORK}/NAME_SEED/TIMESTAMP/drawn/.')


if __name__ == '__main__':
    sys.exit(command_line(main, 'Interrupted; the same command continues.'))
