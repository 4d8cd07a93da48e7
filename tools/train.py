"""Trains a detector, segmenter or classifier, whichever the config describes."""
import sys

from mmsoft.apis.cli import train

if __name__ == '__main__':
    sys.exit(train())
