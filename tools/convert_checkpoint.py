"""Converts a published checkpoint of SOFT or SimA to our names; reads and writes .safetensors, too."""

import argparse
import sys

from mmsoft.utils.cli import command_line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add('source', metavar='SRC', help='checkpoint to read: a published one, one of ours or of mmengine')
    add('target', metavar='DST', help='file to write; the suffix .safetensors chooses that format')
    add('--force', action='store_true', help='replace DST if it exists')
    options = vars(parser.parse_args())
    import mmsoft.apis  # noqa: F401  # takes seconds, so wrong options are reported first; hides a warning of torch
    from mmsoft.checkpoint import convert_checkpoint

    print(convert_checkpoint(**options))


if __name__ == '__main__':
    sys.exit(command_line(main))
