"""Runs the campaign of tests/torture, or the parts whose names hold a word given, and writes docs/reliability.md.

    tools/torture.py killed disks --minutes 30

What is done is not done again. After the words come options of pytest, such as -x, --rounds 3, --torture-seed 1.
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
