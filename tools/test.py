"""Evaluates a detector, segmenter or classifier, whichever the config describes."""

import sys

from mmsoft.utils.cli import command_line, parse_run, run_parser


def main() -> None:
    demo_data = 'test on the synthetic shapes data set in data/shapes, as trained'
    parser = run_parser(__doc__, demo_data, checkpoint=True)
    add = parser.add_argument
    maps = 'label maps of semantic segmentation, with at most 256 classes, to a new folder'
    maps += ' (numbers are one higher with reduce_zero_label)'
    add('--out', help=f'save predictions: to a .pkl file, or {maps}')
    add('--show', action='store_true', help='show predictions in a window')
    where = 'for detection, a relative path is in WORK_DIR/TIMESTAMP'
    add('--show-dir', help=f'save images of predictions to this new folder; {where}')
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
        help='set the attention of these stages (from 0), or of all, to zero, to see what attention contributes',
    )
    options = parse_run(parser)
    from mmsoft.apis import test  # takes seconds, so wrong options are reported first

    test(**options)


if __name__ == '__main__':
    sys.exit(command_line(main))
