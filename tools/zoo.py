"""Prints parameters and FLOPs of the configs beside the papers' figures, as a Markdown table."""
import argparse
import sys
from pathlib import Path

try:
    import mmsoft  # noqa: F401  first of all: it says which host library does not fit
except ImportError as error:
    sys.exit(str(error))

from mmengine.logging import MMLogger  # noqa: E402

from mmsoft.analysis.zoo import published_figures, zoo_table  # noqa: E402
from mmsoft.apis.cli import command_line  # noqa: E402
from mmsoft.utils.errors import UsageError  # noqa: E402

ROOT = Path(__file__).parent.parent


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('names', nargs='*', metavar='NAME', help='only configs whose name contains this, as in mask_rcnn')
    parser.add_argument('--no-flops', action='store_true', help='leave out FLOPs, which take a minute for a detector')
    return parser.parse_args()


def print_table(names: list, no_flops: bool) -> None:
    configs = sorted(path for path in (ROOT / 'configs').glob('*.py')
                     if not names or any(name in path.stem for name in names))
    if not configs:
        raise UsageError(f'No config is called {" or ".join(names)}; they are in {ROOT / "configs"}.')
    MMLogger.get_instance('zoo', log_level='ERROR')  # of what mmengine says of initial weights
    for line in zoo_table(configs, published_figures(ROOT / 'model-index.yml'), not no_flops):
        print(line, flush=True)


def main() -> int:
    options = vars(parse_args())
    return command_line(lambda: print_table(**options), 'Interrupted.')


if __name__ == '__main__':
    sys.exit(main())
