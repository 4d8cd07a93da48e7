"""``python -m benchmarks.evidence``."""

from mmsoft.apis.cli import command_line

from . import main

raise SystemExit(command_line(main))
