"""Predicts what is in images, and draws it: boxes, masks, semantic segmentation or classes."""

import signal
import sys

from mmsoft.utils.cli import command_line, config_parser


def main() -> bool:
    parser = config_parser(__doc__)
    add = parser.add_argument
    add('source', metavar='IMAGE_OR_FOLDER', help='an image, or a folder of them with its subfolders')
    add('--out-dir', required=True, help='folder for the results, new or empty')
    add('--device', help='as PyTorch names it, such as cpu or cuda:1 (default: the best available)')
    add('--score-thr', type=float, default=0.3, help='minimum score of a drawn detection (default: 0.3)')
    add('--save-pred', action='store_true', help='also save each prediction as JSON, or as a label map')
    options = vars(parser.parse_args())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as after Ctrl-C, no half image is left
    from mmsoft.apis import predict  # takes seconds, so wrong options are reported first

    return bool(predict(**options))


if __name__ == '__main__':
    sys.exit(command_line(main, 'Interrupted; what was done is saved.'))
