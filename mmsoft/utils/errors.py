"""The one exception that is meant for the person at the keyboard."""


class UsageError(Exception):
    """Something outside the program is wrong, and its message says in one sentence what, and what to do about it.

    The tools print the message and end with exit code 2; anything else that is raised is a defect and keeps its trace.
    """
