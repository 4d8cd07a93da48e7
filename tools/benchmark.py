"""Runs SOFT, SimA and the hosts' backbones side by side: time and memory against tokens, weights and pictures."""
import sys

try:
    import mmsoft  # noqa: F401  first of all: it says which host library does not fit
except ImportError as error:
    sys.exit(str(error))

from mmsoft.analysis.benchmark_command import main  # noqa: E402

if __name__ == '__main__':
    sys.exit(main())
