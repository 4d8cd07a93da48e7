"""Which versions of the OpenMMLab libraries fit, by their metadata, and one clear sentence if one does not."""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Optional

from packaging.specifiers import SpecifierSet

from . import UsageError

# By module, the distributions that provide it, and their versions that fit; onedl-… are maintained forks.
HOSTS: dict[str, dict[str, str]] = dict(
    mmengine=dict.fromkeys(('mmengine', 'mmengine-lite', 'onedl-mmengine'), '>=0.10.0,<1.0.0'),
    mmcv=dict.fromkeys(('mmcv', 'mmcv-lite', 'onedl-mmcv'), '>=2.0.0,<2.2.0'),
    mmdet={'mmdet': '>=3.1.0,<3.4.0', 'onedl-mmdetection': '>=3.1.0,<4.0.0'},
    mmseg={'mmsegmentation': '>=1.1.0,<1.3.0', 'onedl-mmsegmentation': '>=1.1.0,<2.0.0'},
    mmpretrain={'mmpretrain': '>=1.0.0,<1.3.0', 'onedl-mmpretrain': '>=1.0.0,<2.0.0'},
)
TESTED = 'mmengine 0.10.7, mmcv 2.1.0, mmdet 3.3.0, mmsegmentation 1.2.2, mmpretrain 1.2.0'
ANY_MMCV = '>=2.0.0,<3.0.0'
"""What fits all but mmdet and mmsegmentation, which refuse to be imported with an mmcv newer than the above."""


class HostError(UsageError, ImportError):
    """An OpenMMLab library is missing, too old or too new."""


def installed(module: str) -> Optional[tuple[str, str]]:
    """Distribution and version that provide a library's module, None if there are none."""
    for name in HOSTS[module]:
        with suppress(PackageNotFoundError):
            return name, version(name)
    return None


def _check(module: str, purpose: str, fits: Optional[str] = None) -> None:
    best, advised = next(iter(HOSTS[module].items()))
    remedy = f'install "{best}{advised}" (tested together: {TESTED})'
    found = installed(module)
    if found is None and find_spec(module) is None:
        raise HostError(f'{purpose} needs {module}, which is not installed: {remedy}.')
    name, number = found or (module, None)  # a source tree on the path has no metadata
    for limit, fault in zip((fits or HOSTS[module][name]).split(',') if found else (), ('old', 'new')):
        if not SpecifierSet(limit).contains(number, prereleases=True):
            raise HostError(f'{purpose} does not work with {name} {number}, which is too {fault}: {remedy}.')


def check_hosts(purpose: str = 'mmsoft') -> None:
    """Checks mmengine and mmcv, which everything needs; raises HostError if one is missing, too old or too new."""
    _check('mmengine', purpose)
    _check('mmcv', purpose, ANY_MMCV)


def require_host(module: str, purpose: str = 'mmsoft') -> None:
    """Checks that a library can be used, such as ``'mmdet'``, before something is imported from it for ``purpose``.

    Raises:
        HostError: If it is missing, too old or too new, also for the installed mmcv, or if mmdet would miss mmcv's
            compiled operators.
    """
    _check(module, purpose)
    distribution, _ = installed(module) or ('', '')
    _check('mmcv', purpose, None if distribution in ('mmdet', 'mmsegmentation') else ANY_MMCV)
    if module == 'mmdet' and find_spec('mmcv._ext') is None:
        raise HostError(
            f'{purpose} needs mmcv with compiled operators for mmdet, and the installed mmcv has none: '
            f'replace it by mmcv==2.1.0 (tested together: {TESTED}).'
        )
