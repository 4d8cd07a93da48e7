"""Draws what a network sees: its features, what a class depends on, and the kernels of SOFT's landmarks."""
import sys

from mmsoft.apis.cli import visualize

if __name__ == '__main__':
    sys.exit(visualize())
