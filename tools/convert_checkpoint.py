"""Rewrites a checkpoint of SOFT or SimA under our names, or under the published ones; .safetensors in or out."""
import sys

from mmsoft.apis.cli import convert_checkpoint

if __name__ == '__main__':
    sys.exit(convert_checkpoint())
