"""Rewrites a checkpoint of SOFT or SimA under our names, or under the published ones; a .safetensors file in or out."""
import argparse
import sys

try:
    import mmsoft  # noqa: F401  first of all: it says which host library does not fit
except ImportError as error:
    sys.exit(str(error))

from mmsoft.apis.cli import command_line  # noqa: E402
from mmsoft.checkpoint import convert_checkpoint  # noqa: E402


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('source', metavar='SRC', help='checkpoint to read: a published one, one of ours or of mmengine')
    parser.add_argument('target', metavar='DST', help='file to write; .safetensors chooses that format')
    parser.add_argument(
        '--to', choices=['mmsoft', 'published'], default='mmsoft', help='names to write (default: mmsoft)')
    parser.add_argument('--force', action='store_true', help='replace DST if it exists')
    return parser.parse_args()


def main() -> int:
    options = vars(parse_args())
    return command_line(lambda: print(convert_checkpoint(**options)), 'Interrupted.')


if __name__ == '__main__':
    sys.exit(main())
