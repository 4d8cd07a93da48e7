"""Exports a classifier, segmenter or detector whole, to ONNX."""

import argparse
import sys

from mmsoft.apis import export
from mmsoft.apis.cli import command_line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add('config', help='config file')
    add('checkpoint', help='weights of the model')
    add('--out', required=True, help='file to write, .onnx')
    add('--size', type=int, nargs=2, metavar=('H', 'W'), help='the one size of images to take (default: any)')
    add('--force', action='store_true', help='replace OUT if it exists')
    print(export(**vars(parser.parse_args())))


if __name__ == '__main__':
    sys.exit(command_line(main))
