"""Writes docs/cli.md from the parsers of the tools: ``python docs/generate/cli.py``."""

import re
import runpy
import sys
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Union

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs/cli.md'
HEAD = """# Command line

Every Python file in `tools/` is a tool, to be run in the root of the repository; `dist_*.sh` and `slurm_*.sh` there start `train.py` and `test.py` in [several
processes](training.md#several-gpus). Exit codes: 0 done, 1 partly done, 2 wrong input, 130 interrupted.
`--traceback` shows where an error was raised.
"""


class Parsed(BaseException):
    """Carries a tool's parser out of the tool."""


def parser_of(tool: Union[Path, str], arguments=None) -> ArgumentParser:
    """The parser of a tool, and that it takes the arguments, if some are given.

    Args:
        tool: File of the tool, or name of a module that is one.
        arguments: Its arguments; none are parsed if None.

    Returns:
        The parser, before the tool does any work.
    """
    original, argv = ArgumentParser.parse_args, sys.argv

    def capture(parser, *_, **__):
        if arguments is not None:
            original(parser, arguments)
        raise Parsed(parser)

    ArgumentParser.parse_args, sys.argv = capture, [str(tool), *(arguments or [])]
    try:
        runpy.run_path(str(tool), run_name='__main__') if isinstance(tool, Path) else runpy.run_module(
            tool, run_name='__main__'
        )
    except Parsed as parsed:
        return parsed.args[0]
    finally:
        ArgumentParser.parse_args, sys.argv = original, argv
    raise ValueError(f'{tool} parses no arguments')  # and did its work


def cell(text: str) -> str:
    return ' '.join(text.split()).replace('|', '\\|')


def rows(parser: ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.help is SUPPRESS or action.dest == 'help':
            continue
        yield f'| {name_of(action)} | {cell((action.help or "") % dict(vars(action), prog=parser.prog))} |'


def name_of(action: Action) -> str:
    value = action.metavar or (
        '{' + ','.join(map(str, action.choices)) + '}' if action.choices else action.dest.upper()
    )
    value = ' '.join(value) if isinstance(value, tuple) else value
    if not action.option_strings:
        return f'`{action.metavar or action.dest.upper()}`'
    longest = max(action.option_strings, key=len)
    taken = {0: '', '?': f' [{value}]', '+': f' {value} …', '*': f' [{value} …]'}.get(action.nargs, f' {value}')
    return f'`{longest}{taken}`'


def page() -> str:
    parts = [HEAD]
    for tool in sorted((ROOT / 'tools').glob('*.py')):
        parser = parser_of(tool)
        description = re.split(r'\n\s*\n', (parser.description or '').strip())[0]
        parts.append(
            f'## {tool.name}\n\n{cell(description)}\n\n| argument | meaning |\n|---|---|\n'
            + '\n'.join(rows(parser))
            + '\n'
        )
    return '\n'.join(parts)


if __name__ == '__main__':
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page())
