"""Rewrites a published checkpoint of SOFT or SimA under our names; .safetensors in or out."""

import argparse
import sys

from mmsoft.apis.cli import command_line
from mmsoft.checkpoint import convert_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add('source', metavar='SRC', help='checkpoint to read: a published one, one of ours or of mmengine')
    add('target', metavar='DST', help='file to write; .safetensors chooses that format')
    add('--force', action='store_true', help='replace DST if it exists')
    print(convert_checkpoint(**vars(parser.parse_args())))


if __name__ == '__main__':
    sys.exit(command_line(main))
