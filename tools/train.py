"""Trains a detector, segmenter or classifier, whichever the config describes."""
import argparse
import os
import sys

try:
    import mmsoft  # noqa: F401  first of all: it says which host library does not fit
except ImportError as error:
    sys.exit(str(error))

from mmengine.config import DictAction  # noqa: E402

from mmsoft.apis.cli import command_line  # noqa: E402
from mmsoft.apis.launch import train  # noqa: E402


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('--work-dir', help='folder for logs and checkpoints (default: work_dirs/CONFIG)')
    parser.add_argument('--amp', action='store_true', help='train in half precision (bfloat16 on a CPU)')
    parser.add_argument(
        '--auto-scale-lr', action='store_true', help='scale the learning rate with the batch size, from '
        'auto_scale_lr.base_batch_size of the config')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from a checkpoint, or without one from the latest in the work directory, if there is any')
    parser.add_argument(
        '--demo-data', action='store_true', help='train on generated scenes of shapes in data/shapes, small and short '
        'enough for a CPU: 128 scenes, 2 epochs; for more, --cfg-options train_cfg.max_epochs=N (or max_iters=N) and '
        'train_dataloader.dataset.indices=None')
    parser.add_argument('--from-scratch', action='store_true', help='start from random instead of pretrained weights')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='override settings of the config, as in train_dataloader.batch_size=4 or key="[(a,b),(c,d)]"; no blanks')
    parser.add_argument(
        '--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='what starts the processes')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by some launchers')
    return parser.parse_args()


def main() -> int:
    options = vars(parse_args())
    os.environ.setdefault('LOCAL_RANK', str(options.pop('local_rank')))
    return command_line(lambda: train(**options), 'Interrupted; the same command with --resume goes on.')


if __name__ == '__main__':
    sys.exit(main())
