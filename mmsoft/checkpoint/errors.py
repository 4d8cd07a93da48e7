"""What is said about a file that cannot be used."""
from mmsoft.utils.errors import UsageError


class CheckpointError(UsageError):
    """A checkpoint cannot be used; the message says in one sentence why, and what to do about it."""
