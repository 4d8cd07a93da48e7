"""Evaluates a detector, segmenter or classifier, whichever the config describes."""

import sys

from mmsoft.apis import test
from mmsoft.apis.cli import command_line, parse_run, run_parser


def main() -> None:
    demo_data = 'test on the synthetic shapes data set in data/shapes, as trained'
    parser = run_parser(__doc__, demo_data, checkpoint=True)
    add = parser.add_argument
    add('--out', help='save predictions: to a .pkl file, or label maps of semantic segmentation to a folder')
    add('--show', action='store_true', help='show predictions in a window')
    add('--show-dir', help='save images of predictions to this folder; for detection it lies in WORK_DIR/TIMESTAMP')
    add('--wait-time', type=float, default=2, help='seconds for which the window shows an image')
    add(
        '--tta',
        action='store_true',
        help='merge predictions over several versions of each image (test-time augmentation), by tta_model and '
        'tta_pipeline of the config',
    )
    add(
        '--without-attention',
        type=int,
        nargs='*',
        metavar='STAGE',
        help='set the attention of these stages to zero, counted from 0, or of all: shows what attention is worth',
    )
    test(**parse_run(parser))


if __name__ == '__main__':
    sys.exit(command_line(main))
