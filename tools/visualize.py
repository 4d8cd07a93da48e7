"""Draws the features of a network, and the kernels of SOFT's bottleneck tokens."""

import sys

from mmsoft.utils.cli import command_line, config_parser


def main() -> bool:
    parser = config_parser(__doc__)
    add = parser.add_argument
    add('source', metavar='IMAGE_OR_FOLDER', help='an image, or a folder of them with its subfolders')
    add('--out-dir', required=True, help='folder for a sheet of each image, new or empty')
    add('--device', help='as PyTorch names it, such as cpu or cuda:1 (default: the best available)')
    add(
        '--stages',
        type=int,
        nargs='+',
        metavar='N',
        help='stages, or blocks of a backbone of one stride, from 0 (default: all stages, or four blocks)',
    )
    options = vars(parser.parse_args())
    from mmsoft.apis import visualize  # takes seconds, so wrong options are reported first

    return bool(visualize(**options))


if __name__ == '__main__':
    sys.exit(command_line(main))
