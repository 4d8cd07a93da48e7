"""Draws what a network sees: its features, and the kernels of SOFT's bottleneck tokens."""
import sys

from mmsoft.apis.cli import visualize

if __name__ == '__main__':
    sys.exit(visualize())
