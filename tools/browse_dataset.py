"""Draws images as training sees them, augmented, with their annotations: boxes, masks, label maps or classes."""

import argparse
import sys

from mmsoft.apis.cli import command_line


def main() -> None:
    from mmengine.config import DictAction

    from mmsoft.apis import browse

    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add('config', help='config file')
    add('--out-dir', required=True, help='folder for the images, new or empty')
    add('--count', type=int, default=20, help='number of images (default: 20)')
    add('--demo-data', action='store_true', help='draw the synthetic shapes data set in data/shapes instead')
    add('--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='override settings of the config')
    args = parser.parse_args()
    print(f'{browse(**vars(args))} images are in {args.out_dir}.')


if __name__ == '__main__':
    sys.exit(command_line(main))
