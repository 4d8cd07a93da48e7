"""Trains a config on the generated shapes, evaluates it on held-out scenes, and draws what it found.

Interrupted, the same command goes on where it stopped.
"""
import argparse
import sys

try:
    import mmsoft  # noqa: F401  first of all: it says which host library does not fit
except ImportError as error:
    sys.exit(str(error))

from mmsoft.apis.cli import command_line  # noqa: E402
from mmsoft.apis.showcase import showcase  # noqa: E402


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
