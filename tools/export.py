"""Exports a classifier, segmenter or detector whole, to ONNX or as a program of torch.export."""
import sys

from mmsoft.apis.cli import export

if __name__ == '__main__':
    sys.exit(export())
