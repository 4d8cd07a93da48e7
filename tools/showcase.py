"""Trains a config on the generated shapes, evaluates it on held-out scenes, and draws what it found.

Interrupted, the same command goes on where it stopped.
"""
import argparse
import sys

from mmsoft.launch import command_line
from mmsoft.showcase import showcase


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file, such as configs/retinanet_soft_nano_shapes.py')
    parser.add_argument('--work-dir', help='folder for logs, checkpoints and the picture (default: work_dirs/CONFIG)')
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    return command_line(lambda: showcase(args.config, args.work_dir), 'Interrupted; the same command goes on.')


if __name__ == '__main__':
    sys.exit(main())
