"""Trains short ListOps with every attention and prints a table; after an interruption the same command continues."""

import sys
from pathlib import Path
from typing import Optional

from benchmarks.common import markdown
from mmsoft.apis import test, train
from mmsoft.checkpoint import read_checkpoint

from ..runs import command, kept, spread

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
    soft_convolution=dict(type='WithoutAttention'),
    none=dict(type='NoAttention'),
)
# Of 2110.11945, Table 6, on lists of 501 to 1,999 symbols.
PUBLISHED = dict(softmax='37.10', linformer='37.25', performer='18.80', nystromformer='37.15', soft='37.40')


def run(name: str, seed: int, options: Optional[dict] = None) -> float:
    """Trains with an attention; returns the test accuracy, in percent, of the checkpoint that validation chooses."""
    folder, config = WORK / f'{name}_{seed}', str(HERE / 'configs/listops_small.py')
    attention = dict(ATTENTIONS[name], _delete_=True)
    options = {'model.attention': attention, 'randomness.seed': seed, **(options or {})}

    def compute() -> float:
        train(config, str(folder), resume='auto', cfg_options=options)
        # Killed between writing a new best checkpoint and removing the old one, a training leaves both.
        best = max(folder.glob('best_*.pth'), key=best_score)
        return round(test(config, str(best), str(folder), cfg_options=options)['accuracy/top1'], 2)

    return kept(folder / 'score.json', config, options, compute)


def best_score(checkpoint: Path) -> float:
    """The score for which validation chose a checkpoint."""
    return float(read_checkpoint(str(checkpoint))['message_hub']['runtime_info']['best_score'])


def table(scores: dict[str, list[float]]) -> str:
    """Means and, of several seeds, standard deviations, as a Markdown table."""
    rows = [[f'`{name}`', len(each), spread(each, 1), PUBLISHED.get(name, '–')] for name, each in scores.items()]
    headers = ['attention', 'seeds', 'lists of 7 to 19', 'published, 501 to 1,999']
    return markdown(rows, headers)


if __name__ == '__main__':
    sys.exit(command(HERE, __doc__, list(ATTENTIONS), run, table, seeds=[0, 1, 2]))
