"""Prints parameters and FLOPs of the configs beside the papers' figures, as a Markdown table."""
import sys
from pathlib import Path

try:
    import mmsoft  # noqa: F401  first of all: it says which host library does not fit
except ImportError as error:
    sys.exit(str(error))

from mmsoft.analysis.zoo_command import main  # noqa: E402

if __name__ == '__main__':
    sys.exit(main(Path(__file__).parent.parent))
