"""Trains detectors of tree crowns, tests them on whole photographs and draws what they find.

After an interruption the same command continues; what is done is not done again. Detections beside annotations are
drawn in work_dirs/trees/NAME_SEED/TIMESTAMP/drawn/.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Optional

from benchmarks.common import markdown
from mmsoft.apis import test, train
from mmsoft.engine.checkpoints import latest_checkpoint
from mmsoft.utils.config import load_config

from ..runs import Data, command, kept, spread
from .tiles import TESTED, make_data

HERE = Path(__file__).parent
CONFIGS = HERE / 'configs'
NAMES = sorted(path.stem for path in CONFIGS.glob('*.py'))
FORESTS = ('florida', 'california')
ROOT, WORK = Path('data/trees'), Path('work_dirs/trees')


def run(name: str, seed: int, options: Optional[dict] = None) -> dict[str, float]:
    """Trains a config and tests it on each photograph; ``scores.json`` in its folder keeps what it returns.

    Returns:
        By photograph: AP50, AP (of 100 detections) and, of our networks, AP50 without their attention.
    """
    config, folder = str(CONFIGS / f'{name}.py'), WORK / f'{name}_{seed}'
    changed = {'randomness.seed': seed, **(options or {})}

    def compute() -> dict[str, float]:
        train(config, str(folder), resume='auto', cfg_options=changed)
        checkpoint = str(latest_checkpoint(folder))
        attends = load_config(config).model.backbone.type.startswith('mmsoft.')
        scores = {}
        for photograph in TESTED:
            found = score(config, checkpoint, folder, photograph, changed, show_dir='drawn')
            scores[photograph], scores[f'{photograph} AP'] = found
            if attends:
                controlled, _ = score(config, checkpoint, folder, photograph, changed, without_attention=[])
                scores[f'{photograph} without attention'] = controlled
        return scores

    return kept(folder / 'scores.json', config, changed, compute)


def score(
    config: str, checkpoint: str, folder: Path, photograph: str, changed: dict, tta: bool = True, **options
) -> tuple[float, float]:
    """AP50 and AP of one photograph, in twelve views or one; 0, which the metric leaves out, if nothing was found."""
    file = f'{photograph}.json'
    files = {'test_dataloader.dataset.ann_file': file, 'test_evaluator.ann_file': f'{ROOT}/{file}'}
    scores = test(config, checkpoint, str(folder), cfg_options={**changed, **files}, tta=tta, **options)
    return scores.get('coco/bbox_mAP_50', 0.0), scores.get('coco/bbox_mAP', 0.0)


def table(runs: dict[str, list[dict[str, float]]]) -> str:
    """Means over seeds and, of several, their spread (standard deviation), as a Markdown table."""
    none = 'without attention'
    columns = [
        ('AP50, validation', ['validation']),
        (none, [f'validation {none}']),
        ('AP50, other forests', FORESTS),
        (none, [f'{forest} {none}' for forest in FORESTS]),
        ('AP, validation', ['validation AP']),
    ]
    rows = [[name, len(each), *(_mean(each, keys) for _, keys in columns)] for name, each in runs.items()]
    header = ['config', 'seeds', *(title for title, _ in columns)]
    return markdown(rows, header)


def _mean(runs: list[dict[str, float]], keys: Sequence[str]) -> str:
    """Mean and spread over runs of the mean of some scores, which not every network has."""
    if not set(keys) <= set(runs[0]):
        return '–'
    return spread([mean(run[key] for key in keys) for run in runs], 3)


if __name__ == '__main__':
    photographs = Data(
        '--photographs',
        'the folder data/ of the package deepforest',
        ROOT / 'train.json',
        lambda source: make_data(source, ROOT),
    )
    sys.exit(command(HERE, __doc__, NAMES, run, table, default=['soft_norm_pvt'], data=photographs))
