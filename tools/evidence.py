"""Trains every method and body of the zoo on generated shapes, beside a host's backbone, and writes docs/evidence.md."""
import sys

from mmsoft.apis.cli import run_module

if __name__ == '__main__':
    sys.exit(run_module('mmsoft.analysis.evidence.command'))
