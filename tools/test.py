"""Evaluates a detector, segmenter or classifier, whichever the config describes."""
import argparse
import os
import sys

try:
    import mmsoft  # noqa: F401  first of all: it says which host library does not fit
except ImportError as error:
    sys.exit(str(error))

from mmengine.config import DictAction  # noqa: E402

from mmsoft.apis.cli import command_line  # noqa: E402
from mmsoft.apis.launch import test  # noqa: E402


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--work-dir', help='folder for logs and scores (default: work_dirs/CONFIG)')
    parser.add_argument(
        '--out', help='save predictions: to a .pkl file, or label maps of semantic segmentation to a folder')
    parser.add_argument('--show', action='store_true', help='show predictions in a window')
    parser.add_argument(
        '--show-dir', help='save pictures of predictions to this folder; for detection it lies in WORK_DIR/TIMESTAMP')
    parser.add_argument('--wait-time', type=float, default=2, help='seconds for which the window shows a picture')
    parser.add_argument('--tta', action='store_true', help='merge predictions over several versions of each picture')
    parser.add_argument(
        '--demo-data', action='store_true', help='test on generated scenes of shapes in data/shapes, as trained')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='override settings of the config, as in test_dataloader.batch_size=4 or key="[(a,b),(c,d)]"; no blanks')
    parser.add_argument(
        '--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='what starts the processes')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by some launchers')
    return parser.parse_args()


def main() -> int:
    options = vars(parse_args())
    os.environ.setdefault('LOCAL_RANK', str(options.pop('local_rank')))
    return command_line(lambda: test(**options), 'Interrupted.')


if __name__ == '__main__':
    sys.exit(main())
