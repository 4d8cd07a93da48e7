"""Trains a config on the synthetic shapes data set, evaluates it on held-out scenes, and draws its predictions.

After an interruption the same command continues.
"""

import argparse
import sys

from mmsoft.apis.cli import command_line


def main() -> None:
    from mmsoft.apis import showcase

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file, such as configs/retinanet_soft_nano_shapes.py')
    parser.add_argument('--work-dir', help='folder for logs, checkpoints and the image (default: work_dirs/CONFIG)')
    showcase(**vars(parser.parse_args()))


if __name__ == '__main__':
    sys.exit(command_line(main, 'Interrupted; the same command continues.'))
