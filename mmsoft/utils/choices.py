"""One sentence for an option that does not exist."""
from typing import Sequence

from .errors import OptionError


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises OptionError if ``value`` is none of the ``choices`` of the argument ``name``."""
    if value not in choices:
        raise OptionError(f'{name} must be one of {", ".join(choices)}; got {value!r}')
