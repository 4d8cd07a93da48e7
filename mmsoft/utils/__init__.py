"""Exceptions for errors that a user can correct."""

from collections.abc import Sequence


class UsageError(Exception):
    """An error that a user can correct; the message says what is wrong and what to do about it.

    The tools print the message and end with exit code 2; anything else that is raised is a defect and keeps its trace.
    """

    def __str__(self) -> str:
        return on_one_line(super().__str__())


class OptionError(UsageError, ValueError):
    """An argument of a network names something that does not exist, or that does not fit its place."""


def check_choice(name: str, value: object, choices: Sequence) -> None:
    """Raises OptionError if ``value`` is none of the ``choices`` of the argument ``name``."""
    if value not in choices:
        raise OptionError(f'{name} must be one of {", ".join(map(str, choices))}; got {value!r}')


def on_one_line(text: str) -> str:
    """Escapes characters that are not printable, such as those that move the cursor or colour the terminal."""
    return ''.join(one if one.isprintable() else repr(one)[1:-1] for one in text)
