"""Prints parameters and FLOPs of every size, counted here and (in brackets) published, as a Markdown table."""
import argparse
import sys

try:
    import mmsoft  # noqa: F401  first of all: it says which host library does not fit
except ImportError as error:
    sys.exit(str(error))

from mmsoft.analysis import SIZES, size_table  # noqa: E402
from mmsoft.apis.cli import command_line  # noqa: E402
from mmsoft.utils.errors import UsageError  # noqa: E402


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('models', nargs='*', metavar='MODEL', help='only models whose name contains this, as in tiny')
    parser.add_argument(
        '--shape', nargs=2, type=int, default=(224, 224), metavar=('H', 'W'), help='image size (default: 224 224)')
    return parser.parse_args()


def print_table(models: list, shape: tuple) -> None:
    names = [name for name in SIZES if not models or any(part.lower() in name.lower() for part in models)]
    if not names:
        raise UsageError(f'No model is called {" or ".join(models)}; choose from {", ".join(SIZES)}.')
    if min(shape) < 32:
        raise UsageError('--shape needs 32 rows and columns at least.')
    print(size_table(names, tuple(shape)))


def main() -> int:
    options = vars(parse_args())
    return command_line(lambda: print_table(**options), 'Interrupted.')


if __name__ == '__main__':
    sys.exit(main())
