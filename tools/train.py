"""Trains a detector, segmenter or classifier, whichever the config describes."""

import sys

from mmsoft.utils.cli import command_line, parse_run, run_parser


def main() -> None:
    parser = run_parser(
        __doc__,
        demo_data='train on the synthetic shapes data set in data/shapes: 128 small scenes, 2 '
        'epochs, small enough for a CPU; for more, --cfg-options train_cfg.max_epochs=N (or max_iters=N)',
    )
    add = parser.add_argument
    add('--amp', action='store_true', help='train in half precision, on a GPU')
    add(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate with the batch size, from auto_scale_lr.base_batch_size of the config',
    )
    add(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='resume from a checkpoint, by default the last in the work directory if there is one',
    )
    add('--from-scratch', action='store_true', help='start from random instead of pretrained weights')
    options = parse_run(parser)
    from mmsoft.apis import train  # takes seconds, so wrong options are reported first

    train(**options)


if __name__ == '__main__':
    sys.exit(command_line(main, 'Interrupted; the same command with --resume continues.'))
