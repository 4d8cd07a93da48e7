"""Prints parameters and FLOPs of the configs beside the papers' figures, as a Markdown table."""
import sys
from pathlib import Path

from mmsoft.apis.cli import run_module

if __name__ == '__main__':
    sys.exit(run_module('mmsoft.analysis.zoo', Path(__file__).parent.parent))
