"""The host libraries: which versions fit, and one clear sentence when one does not.

Versions are read from the installed metadata, so that looking at a library does not import it.
"""
import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import NamedTuple, Optional, Tuple

from .errors import UsageError


class Host(NamedTuple):
    """A host library: the distributions that provide it, the versions that fit (from, below) and the tested one.

    The maintained forks (``onedl-…``) have the same modules and count their versions on from the originals.
    """
    distributions: Tuple[str, ...]
    minimum: str
    below: str
    tested: str
    fork: str
    fork_below: str

    def find(self) -> Optional[Tuple[str, str]]:
        """Returns (distribution, version) of what is installed."""
        for name in self.distributions + (self.fork, ):
            try:
                return name, version(name)
            except PackageNotFoundError:
                pass
        return None

    def limit(self, distribution: str) -> str:
        return self.fork_below if distribution == self.fork else self.below


HOSTS = dict(
    mmengine=Host(('mmengine', 'mmengine-lite'), '0.10.0', '1.0.0', '0.10.7', 'onedl-mmengine', '1.0.0'),
    mmcv=Host(('mmcv', 'mmcv-lite'), '2.0.0', '2.2.0', '2.1.0', 'onedl-mmcv', '3.0.0'),
    mmdet=Host(('mmdet', ), '3.1.0', '3.4.0', '3.3.0', 'onedl-mmdetection', '4.0.0'),
    mmseg=Host(('mmsegmentation', ), '1.1.0', '1.3.0', '1.2.2', 'onedl-mmsegmentation', '2.0.0'),
    mmpretrain=Host(('mmpretrain', ), '1.0.0', '1.3.0', '1.2.0', 'onedl-mmpretrain', '2.0.0'),
)
TESTED = ', '.join(f'{host.distributions[0]} {host.tested}' for host in HOSTS.values())


class HostError(UsageError, ImportError):
    """A host library is missing, too old or too new."""


def _numbers(text: str) -> Tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r'\d+', text.split('+')[0])[:3])


def _check_version(module: str, purpose: str) -> None:
    host = HOSTS[module]
    remedy = f'install "{host.distributions[0]}>={host.minimum},<{host.below}" (tested together: {TESTED})'
    found = host.find()
    if found is None:
        if find_spec(module) is None:
            raise HostError(f'{purpose} needs {module}, which is not installed: {remedy}.')
        return  # a source tree on the path has no metadata to judge it by
    name, installed = found
    if _numbers(installed) < _numbers(host.minimum):
        raise HostError(f'{purpose} does not work with {name} {installed}, which is too old: {remedy}.')
    if _numbers(installed) >= _numbers(host.limit(name)):
        raise HostError(f'{purpose} does not work with {name} {installed}, which is too new: {remedy}.')


def require_host(module: str, purpose: str = 'mmsoft') -> None:
    """Checks that a host library is there and can be used, before something is imported from it.

    Args:
        module (str): Name of its module, such as ``'mmdet'``.
        purpose (str): What needs it, as the subject of the sentence. Defaults to ``'mmsoft'``.

    Raises:
        HostError: If it is missing, too old or too new, or if mmdet would miss mmcv's compiled operators.
    """
    _check_version(module, purpose)
    if module == 'mmdet' and find_spec('mmcv._ext') is None:
        raise HostError(f'{purpose} needs mmcv with compiled operators for mmdet, and the installed mmcv has none: '
                        f'replace it by mmcv=={HOSTS["mmcv"].tested} (tested together: {TESTED}).')


def check_hosts() -> None:
    """Checks mmengine and mmcv, which everything needs, and of the other host libraries those that are there."""
    for module, host in HOSTS.items():
        if module in ('mmengine', 'mmcv') or host.find():
            _check_version(module, 'mmsoft')
