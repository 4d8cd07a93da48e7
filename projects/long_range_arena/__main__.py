"""Trains short ListOps with every attention and prints a table; after an interruption the same command continues."""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Optional

from tabulate import tabulate

from mmsoft.apis import test, train
from mmsoft.apis.cli import command_line
from mmsoft.utils.files import atomic_write

HERE, WORK = Path(__file__).parent, Path('work_dirs/long_range_arena')
SOFT = dict(type='SOFTAttention', sampling='avg_pool', initial_gamma=0.3)
ATTENTIONS = dict(
    softmax=dict(type='SoftmaxAttention'),
    linformer=dict(type='LinformerAttention'),
    performer=dict(type='PerformerAttention'),
    nystromformer=dict(type='NystromformerAttention'),
    soft=dict(SOFT, norm=False),
    soft_norm=SOFT,
    sima=dict(type='SimAAttention'),
    gaussian=dict(type='GaussianAttention'),
    gaussian_mean=dict(type='GaussianAttention', normalise='mean'),
    efficient=dict(type='EfficientAttention'),
    cosformer=dict(type='CosFormerAttention'),
    cosformer_cosine=dict(type='CosFormerAttention', reweight=True),
    none=dict(type='NoAttention'),
)
# Of 2110.11945, Table 6, on lists of 501 to 1,999 symbols.
PUBLISHED = dict(softmax=37.10, linformer=37.25, performer=18.80, nystromformer=37.15, soft=37.40)


def run(name: str, seed: int, options: Optional[dict] = None) -> float:
    """Trains with an attention; returns the test accuracy, in percent, of the checkpoint that validation chooses."""
    folder = WORK / f'{name}_{seed}'
    file = folder / 'score.json'
    if not file.exists():
        config = str(HERE / 'configs/listops_small.py')
        attention = dict(ATTENTIONS[name], _delete_=True)
        options = {'model.attention': attention, 'randomness.seed': seed, **(options or {})}
        train(config, str(folder), resume='auto', cfg_options=options)
        (best,) = folder.glob('best_*.pth')
        score = test(config, str(best), str(folder), cfg_options=options)['accuracy/top1']
        with atomic_write(file) as stream:
            stream.write(json.dumps(score).encode())
    return float(json.loads(file.read_text()))


def table(scores: dict[str, list[float]]) -> str:
    """Means and, of several seeds, standard deviations, as a Markdown table."""
    rows = []
    for name, each in scores.items():
        spread = f' ± {stdev(each):.1f}' if len(each) > 1 else ''
        rows.append([f'`{name}`', len(each), f'{mean(each):.1f}{spread}', PUBLISHED.get(name, '–')])
    headers = ['attention', 'seeds', 'short lists', 'published, long lists']
    return tabulate(rows, headers, tablefmt='github', disable_numparse=True)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog='python -m projects.long_range_arena', description=__doc__)
    add = parser.add_argument
    add('names', nargs='*', metavar='NAME', help=f'attentions, of {", ".join(ATTENTIONS)} (default: all)')
    add('--seeds', type=int, nargs='+', default=[0, 1, 2], help='seeds of the trainings of each (default: 0 1 2)')
    add('--publish', action='store_true', help='write the scores to results.json, of which README.md has the table')
    args = parser.parse_args()
    names = args.names or list(ATTENTIONS)
    if not set(names) <= set(ATTENTIONS):
        parser.error(f'choose from {", ".join(ATTENTIONS)}')
    for seed in args.seeds:
        for name in names:
            run(name, seed)
    scores = {name: [run(name, seed) for seed in args.seeds] for name in names}
    if args.publish:
        with atomic_write(HERE / 'results.json') as stream:
            stream.write(json.dumps(scores, indent=1).encode())
    print(table(scores))


if __name__ == '__main__':
    sys.exit(command_line(main, 'Interrupted; the same command continues.'))
