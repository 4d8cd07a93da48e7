"""Trains a config on the generated shapes, evaluates it on held-out scenes, and draws what it found."""
import sys

from mmsoft.apis.cli import showcase

if __name__ == '__main__':
    sys.exit(showcase())
