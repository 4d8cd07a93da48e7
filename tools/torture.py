"""Runs the fault injection of tests/torture, or the parts whose names contain one of the words given.

    tools/torture.py killed disks --minutes 30

Finished rounds are not repeated; --publish writes the table of docs/fault_injection.md. Options of pytest come after the
words, such as -x, --rounds 3, --torture-seed 1.
"""
import sys
from itertools import takewhile
from pathlib import Path

from mmsoft.apis.cli import run_module

if __name__ == '__main__':
    words = list(takewhile(lambda argument: not argument.startswith('-'), sys.argv[1:]))
    chosen = ['-k', ' or '.join(words)] if words else []
    folder = Path(__file__).resolve().parents[1] / 'tests/torture'
    sys.exit(run_module('pytest', [str(folder), '--full', *chosen, *sys.argv[1 + len(words):]]))
