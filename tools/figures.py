"""Draws the papers' figures anew: memory, Newton's convergence, spectral norms, attention maps, softmax's cost."""
import sys

from mmsoft.apis.cli import run_module

if __name__ == '__main__':
    sys.exit(run_module('mmsoft.analysis.figures.command'))
