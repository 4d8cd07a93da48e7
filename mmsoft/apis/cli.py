"""What the command lines in tools/ have in common."""
import sys
from typing import Any, Callable

from ..utils.errors import UsageError


def command_line(run: Callable[[], Any], when_interrupted: str) -> int:
    """Runs a tool, and says in one sentence what its user has to mend.

    Args:
        run: The tool's work.
        when_interrupted: What to say after Ctrl-C.

    Returns:
        The exit code: 0, 2 after a :class:`UsageError`, 130 after Ctrl-C.
    """
    try:
        run()
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f'\n{when_interrupted}', file=sys.stderr)
        return 130
    return 0
