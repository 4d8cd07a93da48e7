"""Runs SOFT, SimA and the hosts' backbones side by side: time and memory against tokens, weights and pictures."""
import sys

from mmsoft.apis.cli import run_module

if __name__ == '__main__':
    sys.exit(run_module('mmsoft.analysis.benchmark_command'))
