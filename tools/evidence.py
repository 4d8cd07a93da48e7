"""Trains every method and body of the zoo on generated shapes, beside a host's backbone, and writes docs/evidence.md."""
import sys

try:
    import mmsoft  # noqa: F401  first of all: it says which host library does not fit
except ImportError as error:
    sys.exit(str(error))

from mmsoft.analysis.evidence.command import main  # noqa: E402

if __name__ == '__main__':
    sys.exit(main())
