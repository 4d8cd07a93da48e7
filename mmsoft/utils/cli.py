"""Common parts of the command lines in tools/: exit codes, and the options of training and testing."""

import os
import sys
import warnings
from argparse import ArgumentParser
from typing import Any, Callable, Optional

from mmengine.config import DictAction

from . import UsageError
from .files import DISK


def command_line(run: Callable[[], Any], when_interrupted: str = 'Interrupted.') -> int:
    """Runs a tool. A user's error prints one message, or its trace with ``--traceback``; a programming error its trace.

    Returns the exit code: the number that ``run`` returns, or 0; 2 after a :class:`UsageError`, if files cannot be
    written or read or a package is missing; 130 after Ctrl-C, when ``when_interrupted`` is printed.
    """
    with_trace = '--traceback' in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != '--traceback']
    warnings.filterwarnings('ignore', module=r'mmengine\.visualization')  # of a missing folder, and boxes at borders
    if getattr(sys.stdout, 'errors', '') == 'strict':  # some characters may not be in the locale
        sys.stdout.reconfigure(errors='backslashreplace')  # type: ignore[union-attr]
    try:
        code = run()
    except (KeyboardInterrupt, SyntaxError) as error:  # from Ctrl-C while mmengine writes a config
        if KeyboardInterrupt not in (type(error), type(error.__context__)):
            raise
        print(f'\n{when_interrupted}', file=sys.stderr)
        return 130
    except (UsageError, OSError, ModuleNotFoundError) as error:
        missing = str(getattr(error, 'name', ''))  # a module; a part of a package is missing where that is broken
        if with_trace or '.' in missing or (isinstance(error, OSError) and error.errno not in DISK):
            raise
        if isinstance(error, OSError):
            error = UsageError(f'{error.filename or "A file"} cannot be written or read ({error.strerror}).')
        print(f'{error} (see docs/installation.md, or --traceback).' if missing else error, file=sys.stderr)
        return 2
    return code if isinstance(code, int) else 0


class KeyValues(DictAction):
    """mmengine's ``DictAction`` with an error message about what is wrong."""

    def __call__(self, parser: ArgumentParser, *args: Any) -> None:
        try:
            super().__call__(parser, *args)
        except (ValueError, AssertionError) as error:
            parser.error(f'--cfg-options takes KEY=VALUE pairs, and stands after all other arguments ({error})')


def config_parser(description: Optional[str], checkpoint: bool = True) -> ArgumentParser:
    """A parser with the arguments that tools share: a config, options that override it, optionally a ``checkpoint``."""
    parser = ArgumentParser(description=description, epilog='--traceback shows where an error was raised.')
    parser.add_argument('config', help='config file')
    if checkpoint:
        parser.add_argument('checkpoint', help='weights of the model')
    example = 'in train_dataloader.batch_size=4 or key="[(a,b),(c,d)]", without blanks; after all positional arguments'
    what = f'override settings of the config, as {example}'
    parser.add_argument('--cfg-options', nargs='+', action=KeyValues, metavar='KEY=VALUE', help=what)
    return parser


def run_parser(description: Optional[str], demo_data: str, checkpoint: bool = False) -> ArgumentParser:
    """A parser with the options that training and testing share; ``demo_data`` is the help of ``--demo-data``."""
    parser = config_parser(description, checkpoint)
    add = parser.add_argument
    add('--work-dir', help='folder for logs, checkpoints and scores (default: work_dirs/NAME, of a config NAME.py)')
    add('--demo-data', action='store_true', help=demo_data)
    add('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='what launches the processes')
    add('--local_rank', '--local-rank', type=int, default=0, help='set by some launchers')
    return parser


def parse_run(parser: ArgumentParser) -> dict[str, Any]:
    """Parses the options of :func:`run_parser` by name; puts a launcher's rank where mmengine reads it."""
    options = vars(parser.parse_args())
    os.environ.setdefault('LOCAL_RANK', str(options.pop('local_rank')))
    return options
