"""What every part of the package may use: errors for people, and the check of the OpenMMLab libraries."""
from .errors import OptionError, UsageError, check_choice
from .hosts import HostError, check_hosts, require_host

__all__ = ['HostError', 'OptionError', 'UsageError', 'check_choice', 'check_hosts', 'require_host']
