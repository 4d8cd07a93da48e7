"""Exports a whole classifier, segmenter or detector to ONNX."""

import sys

from mmsoft.utils.cli import command_line, config_parser


def main() -> None:
    parser = config_parser(__doc__)
    add = parser.add_argument
    add('--out', required=True, help='file to write, .onnx')
    add('--size', type=int, nargs=2, metavar=('H', 'W'), help='fixed size of the input images (default: any size)')
    add('--force', action='store_true', help='replace OUT if it exists')
    options = vars(parser.parse_args())
    from mmsoft.apis import export  # takes seconds, so wrong options are reported first

    print(export(**options))


if __name__ == '__main__':
    sys.exit(command_line(main))
