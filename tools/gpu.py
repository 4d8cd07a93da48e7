"""Tests and measures everything that needs a GPU, and writes one page and one table."""
import sys
from pathlib import Path

from mmsoft.apis.cli import run_module

ROOT = Path(__file__).resolve().parents[1]

if __name__ == '__main__':
    sys.path.insert(0, str(ROOT))  # benchmarks/ is not installed
    sys.exit(run_module('benchmarks.gpu'))
