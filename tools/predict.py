"""Predicts what is in pictures, and draws it: boxes, masks, semantic segmentation or classes."""
import sys

from mmsoft.apis.cli import predict

if __name__ == '__main__':
    sys.exit(predict())
